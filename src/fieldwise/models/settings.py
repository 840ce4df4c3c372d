"""What all models' settings share: the base class, types that check their values, and checks of layouts."""

import dataclasses
import functools
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Protocol, TypeVar, get_args, get_origin

from torch import nn

from fieldwise.config import Settings, nearest
from fieldwise.errors import ConfigError
from fieldwise.layers import MLP, FieldEmbedding
from fieldwise.layout import Layout

C = TypeVar("C")
Check = Callable[[str, Any], None]


def check_size(name: str, value: Any, minimum: int = 1) -> None:
    """Check that a setting is a whole number of at least `minimum`.

    >>> check_size("heads", 0)
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: heads must be a whole number of at least 1, found 0
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ConfigError(f"{name} must be a whole number of at least {minimum}, found {value!r}")


def _check_sizes(name: str, sizes: Any, least: int = 1) -> None:
    if not isinstance(sizes, tuple):
        raise ConfigError(f"{name} must be a tuple of sizes, as in (400, 400), found {sizes!r}")
    if len(sizes) < least:
        raise ConfigError(
            f"{name} must name the size of at least one layer, as in (400, 400), found {sizes!r}"
        )
    for i, size in enumerate(sizes):
        check_size(f"{name}[{i}]", size)


def number(fits: Callable[[float], bool], rule: str) -> Check:
    """A check that a setting is a number that `fits`; the rule is part of the message: "above 0"."""

    def check(name: str, value: Any) -> None:
        if not isinstance(value, int | float) or isinstance(value, bool) or not fits(value):
            raise ConfigError(f"{name} must be {rule}, found {value!r}")

    return check


Size = Annotated[int, check_size]
Sizes = Annotated[tuple[int, ...], _check_sizes]
OptionalSizes = Annotated[tuple[int, ...], functools.partial(_check_sizes, least=0)]
Rate = Annotated[float, number(lambda x: 0 <= x < 1, "at least 0 and less than 1")]
Positive = Annotated[float, number(lambda x: 0 < x < float("inf"), "above 0 and finite")]
NonNegative = Annotated[float, number(lambda x: 0 <= x < float("inf"), "0 or more and finite")]


class ModelSettings(Protocol):
    """The interface of every model's settings."""

    def build(self, layout: Layout) -> nn.Module:
        """A network with new weights, initialized with torch's global random generator."""
        ...


_hints = functools.cache(functools.partial(typing.get_type_hints, include_extras=True))


def check_annotated(settings: Any) -> None:
    """Check each setting that is not None by its declared type: `Size`, `Rate` and others of this file, or bool."""
    hints = _hints(type(settings))  # type: ignore[arg-type]
    for f in dataclasses.fields(settings):
        hint = hints[f.name]
        value = getattr(settings, f.name)
        if type(None) in get_args(hint):
            if value is None:
                continue
            hint = get_args(hint)[0]
        if get_origin(hint) is Annotated:
            hint.__metadata__[0](f.name, value)
        elif hint is bool and not isinstance(value, bool):  # any text would count as true
            raise ConfigError(f"{f.name} must be True or False, found {value!r}")


MODELS: dict[str, type[ModelSettings]] = {}
"""The built-in models' settings by the names that recipes use; each file of this folder registers its own."""


@dataclass(frozen=True, kw_only=True)
class DataDefaults:
    """What is chosen for settings that were not given, if defaults follow from the data (docs/defaults.md).

    The attribute `data_defaults` of a model's settings class; the attribute of a base class does
    not count. The training of a model without one has these defaults, and its own settings keep
    their class's.

    Args:
        std: standard deviation of the embeddings' initial values.
        prior: `c` of the embeddings' L2 strength `c / rows`.
        of_pairs: whether `prior` is divided by the number of pairs of fields: of a model with a
            mean over pairs.
        rate: Adam's learning rate.
        small_table_rows: number of training rows below which `small_table_rate` is the learning
            rate.
        small_table_rate: see `small_table_rows`.
        unknown_share: the training's `unknown_share`.
        settings: the model's other settings by name.
        normalizes: whether `batch_norm` is on if there are enough training rows per row of the
            embedding table.
        solved_exactly: whether it is a regression, which `optimizer = "lbfgs"` solves.
        starts_from_lr: whether `start_from_lr` is on, where LR can be solved exactly.
        lazy_std: `std` for tables of many values, whose rows are updated lazily; None for `std`.
        lazy_prior: `prior` for such tables; None for `prior`.
        lazy_rate: `rate` for such tables; None for `rate`.
    """

    std: float = 0.2
    prior: float = 300.0
    of_pairs: bool = False
    rate: float = 0.003
    small_table_rows: int = 5_000
    small_table_rate: float = 0.002
    unknown_share: float = 0.3
    settings: Mapping[str, Any] = field(default_factory=dict)
    normalizes: bool = False
    solved_exactly: bool = False
    starts_from_lr: bool = False
    lazy_std: float | None = None
    lazy_prior: float | None = None
    lazy_rate: float | None = None


SMALL_MLP: dict[str, Any] = {"embedding_dim": 16, "hidden": (128,), "mlp_dropout": 0.2}
"""The `settings` of several models' `DataDefaults`."""


@dataclass(frozen=True, kw_only=True)
class EmbeddingSettings(Settings):
    """Base class for settings of models with one embedding table (abstract); every such model has these.

    A model declares its own settings and overrides defaults where they differ. Each value is
    checked by the declared type, such as `Size`, `Rate`, a Literal or bool; a `check` for what
    types cannot say calls this one first.

    Args:
        embedding_dim: D, the size of each field's vector.
        embedding_std: standard deviation of the embeddings' initial values.

    Errors:
        ConfigError: a setting out of range; `build`: a layout without the fields that the model
            needs.

    >>> from fieldwise.models import DCN
    >>> DCN(batch_norm="no")
    Traceback (most recent call last):
    fieldwise.errors.ConfigError: batch_norm must be True or False, found 'no'
    """

    embedding_dim: Size = 16
    embedding_std: Positive = 0.01

    def check(self) -> None:
        check_annotated(self)
        super().check()

    def make_embedding(self, layout: Layout) -> FieldEmbedding:
        """The embedding table of the layout's fields, with fresh weights."""
        return FieldEmbedding(layout, self.embedding_dim, std=self.embedding_std)

    def make_mlp(self, inputs: int, outputs: int | None = 1) -> MLP:
        """The MLP of settings with `hidden`, `mlp_activation`, `mlp_dropout` and `batch_norm`, with fresh weights."""
        settings: Any = self
        return MLP(
            inputs,
            settings.hidden,
            outputs=outputs,
            dropout=settings.mlp_dropout,
            batch_norm=settings.batch_norm,
            activation=settings.mlp_activation,
        )

    def check_fields(self, layout: Layout, minimum: int, why: str) -> None:
        """Check that the layout has at least `minimum` fields; `why` is part of the message: "attends to pairs".

        >>> EmbeddingSettings().check_fields(Layout.of_sizes([3]), 2, "attends to pairs")
        Traceback (most recent call last):
        fieldwise.errors.ConfigError: EmbeddingSettings attends to pairs and needs at least 2 fields, found 1: add \
fields to the schema
        """
        if layout.num_fields < minimum:
            model = getattr(self, "title", type(self).__name__)
            fields = layout.num_fields or "none"
            needed = f"{minimum} field{'s' if minimum > 1 else ''}"
            raise ConfigError(
                f"{model} {why} and needs at least {needed}, found {fields}: add fields to the schema"
            )


def choices(settings: Any, preset: C) -> C:
    """A variant's choices, overridden by every field of the same name in `settings` that is not None.

    Args:
        settings: a model's settings; None in a field means the variant's value, as does a field
            that it has not.
        preset: a frozen dataclass of the choices of one variant.

    >>> from types import SimpleNamespace
    >>> Choices = dataclasses.make_dataclass("Choices", ["scale", "bias"])
    >>> choices(SimpleNamespace(scale=True, bias=None), Choices(scale=False, bias=True))
    Choices(scale=True, bias=True)
    """
    given = {f.name: getattr(settings, f.name, None) for f in dataclasses.fields(preset)}  # type: ignore[arg-type]
    given = {name: value for name, value in given.items() if value is not None}
    return dataclasses.replace(preset, **given)  # type: ignore[type-var]


def check_field_names(layout: Layout, setting: str, names: Iterable[str]) -> None:
    """Check that a setting names fields of the layout."""
    known = [f.name for f in layout.fields]
    for name in names:
        if name not in known:
            raise ConfigError(
                f"{setting} must name fields of the schema, found {name!r}: {nearest(name, known)}"
            )


def sides(layout: Layout, model: str) -> tuple[list[int], list[int]]:
    """Positions of a two-tower model's user side (user and context fields) and item side; neither may be empty.

    >>> sides(Layout.of_sizes([3, 4, 2], ["context", "item", "user"]), "DSSM")
    ([0, 2], [1])
    """
    user = sorted(layout.positions(role="user") + layout.positions(role="context"))
    item = layout.positions(role="item")
    if not user or not item:
        side, needed = ("user", "user or context") if not user else ("item", "item")
        raise ConfigError(
            f"{model}'s {side} tower needs a field of role {needed}, found none: set fields' roles"
        )
    return user, item
