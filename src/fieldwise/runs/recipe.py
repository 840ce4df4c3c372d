"""Recipes: data, schema, split, model and training of one run."""

import dataclasses
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from fieldwise.config import changed, check_seed, given_plain, parse, to_plain
from fieldwise.data.prepare.settings import (
    HistorySettings,
    NegativeSampling,
    RandomSplit,
    SplitSettings,
    TargetEncoding,
    TimeSplit,
)
from fieldwise.features.definitions import Feature
from fieldwise.runs.bounds import Bounds, parse_space
from fieldwise.runs.data_settings import DataSettings
from fieldwise.schema import Schema
from fieldwise.training.settings import TrainingSettings

if TYPE_CHECKING:
    from fieldwise.data.prepare.prepared import Prepared
    from fieldwise.models import ModelSettings

Defaults = Literal["data", "fixed"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One run, ready to train.

    Args:
        defaults: source of omitted `[model]` and `[training]` settings: `data`, rules on the
            training rows (`fieldwise.runs.default_settings`), or `fixed`, the classes' defaults, as
            in recipes of papers and benchmarks.
        warm_start: folder of a bundle for a warm start (`fieldwise.bundle.warm_start.warm_start`), such
            as a trained FM for an AFM. A relative path in a recipe file is relative to that file's
            folder.
        features: columns as of each row's time (`fieldwise.features`); fields of the schema read
            them.
        search: search space of `fieldwise tune`, by dotted path, merged over the built-in space of
            the model.
        benchmark: name of the task: rows, fields and label. Metrics are comparable only within one
            benchmark and protocol.
        protocol: name of the split and feature definition; some data sets have several.
        seed: seed of initial weights, row order and dropout; also of split and negatives if
            `data_seed` is omitted.
        data_seed: seed of split and negatives.
    """

    name: str
    data: DataSettings
    schema: Schema
    model: "ModelSettings"
    split: SplitSettings = field(default_factory=RandomSplit)
    negatives: NegativeSampling | None = None
    history: HistorySettings | None = None
    target_encoding: TargetEncoding | None = None
    features: tuple[Feature, ...] = ()
    training: TrainingSettings = field(default_factory=TrainingSettings)
    defaults: Defaults = "data"
    warm_start: str | None = None
    description: str = ""
    benchmark: str = ""
    protocol: str = ""
    search: Mapping[str, Bounds | Literal[False]] = field(default_factory=dict)
    seed: int = 0
    data_seed: int | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)
        check_seed(self.rows_seed, "data_seed")
        if isinstance(self.model, type):  # a user-defined model
            from fieldwise.models.registry import as_settings

            object.__setattr__(self, "model", as_settings(self.model))

    @property
    def title(self) -> str:
        """The recipe's name, of a file without its folder and suffix."""
        return title_of(self.name)

    @property
    def rows_seed(self) -> int:
        """The seed of the split and negatives."""
        return self.seed if self.data_seed is None else self.data_seed

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Columns whose cells are read from text files as they are written: the schema's, and those named elsewhere.

        Such as a split's column of users that is no field.
        """
        columns = list(self.schema.text_columns)
        for settings in (self.split, self.negatives, self.history, self.target_encoding):
            if settings is not None:
                columns += settings.text_columns
        for feature in self.features:
            columns += feature.keys
        return tuple(dict.fromkeys(columns))

    def cautions(self, prepared: "Prepared | None" = None) -> list[str]:
        """Warnings of a protocol that leaks, counted in prepared rows, and of settings that the model does not read."""
        which_rows = ""
        left_out = ""
        if prepared is not None:
            which_rows = f", which are all {prepared.counts['test_rows']:,} test rows"
            left_out = f", which left out {prepared.counts.get('dropped_by_split', 0):,}"
        from fieldwise.training.tree_run import tree_cautions  # imports PyTorch

        layout = None if prepared is None else prepared.encoder.layout
        sentences = tree_cautions(self.model, self.training, layout)
        encoding = self.target_encoding
        if encoding is not None and encoding.source != "train":
            sentences.append(
                f"target_encoding.source = {encoding.source!r} uses the labels of the scored rows{which_rows}: metrics "
                "are too good, and only comparable with published ones that have the same leak"
            )
        of_labels = self._features_of_labels()
        if of_labels and not isinstance(self.split, TimeSplit):
            sentences.append(
                f"split.kind = {self.split.kind!r} lets training rows see labels of earlier test rows in the features "
                f"{', '.join(of_labels)}: split by time, or leave these features out"
            )
        if of_labels and self.schema.label.sampled is not None:
            sentences.append(
                f"label.sampled says that the log kept some of its rows, and the features {', '.join(of_labels)} are "
                "of those alone: their means and rates are not the whole log's; compute served ones from a log sampled "
                "alike, or these from a table of all rows"
            )
        if not isinstance(self.split, RandomSplit):
            return sentences

        rule = self.split.drop_without_positive
        if rule is not None:
            sentences.append(
                f"split.drop_without_positive = {rule!r} chooses rows by their labels{left_out}, "
                "also among the test rows: metrics are only comparable with published ones of the same rows"
            )
        column = self.split.valid_last_by
        if column is not None:
            sentences.append(
                f"split.valid_last_by = {column!r} takes the last rows by that column for validation"
                f"{_unseen_words(column, self.schema, prepared)}: metrics are only comparable with "
                "published ones of the same split"
            )
        return sentences

    def _features_of_labels(self) -> list[str]:
        """The columns of features whose values are a label of the log."""
        labels = set[str | None]()
        for label in self.schema.labels:
            labels |= {label.name, label.column}
        columns = list[str]()
        for feature in self.features:
            if feature.table is None and feature.value in labels:
                columns += feature.columns
        return columns

    def on(self, device: str) -> "Recipe":
        """The recipe, to be trained on another device (`training.device`)."""
        return dataclasses.replace(
            self, training=changed(self.training, {"device": device}, "training")
        )

    def to_dict(self) -> dict[str, Any]:
        """The recipe as plain values for `from_dict`, without what belongs to this machine (`training.device`)."""
        from fieldwise.models.serialise import model_name, model_to_dict

        plain: dict[str, Any] = to_plain(self)
        del plain["name"]
        if not self.features:
            del plain["features"]
        if self.defaults == "fixed":
            return {**plain, "model": model_to_dict(self.model)}
        model = {"name": model_name(self.model), **given_plain(self.model)}
        return {**plain, "model": model, "training": given_plain(self.training)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], name: str) -> "Recipe":
        """A recipe from the tables of a recipe file, with `extends` already resolved.

        Errors:
            ConfigError, SchemaError: an unknown, missing or wrong setting; the message has its
                path.
        """
        tables, schema, search = checked_tables(data, name)
        # imports PyTorch: only if the rest of the recipe is valid
        from fieldwise.models.serialise import model_from_dict

        model = model_from_dict(tables.model, f"recipe {name}: model")
        other_settings = {
            section: getattr(tables, section) for section in SECTIONS if section not in _UNPARSED
        }
        return cls(name=name, schema=schema, model=model, search=search, **other_settings)


def title_of(name: str) -> str:
    """The title of a recipe's name.

    >>> title_of("mine/clicks.toml"), title_of("adult/fm")
    ('clicks', 'adult/fm')
    """
    return Path(name).stem if name.endswith(".toml") else name


def _unseen_words(column: str, schema: Schema, prepared: "Prepared | None") -> str:
    """How many validation and test rows have a value in a field's column that no training row has."""
    names = [field.name for field in schema.fields if field.column == column]
    if prepared is None or not names or names[0] not in prepared.unseen["test"]:
        return ""
    in_valid = prepared.unseen["valid"][names[0]]
    in_test = prepared.unseen["test"][names[0]]
    return (
        f", so that {in_valid:.1%} of the validation rows and {in_test:.1%} of the test rows have one that no training "
        "row has"
    )


_FIELDS_OF_A_FILE = fields(Recipe)[1:]  # a file does not have the name
SECTIONS = tuple(f.name for f in _FIELDS_OF_A_FILE)
_UNPARSED = ("schema", "model", "search")
_Tables: Any = make_dataclass(
    "_Tables",
    [
        (f.name, dict[str, Any] if f.name in _UNPARSED else f.type, copy(f))
        for f in _FIELDS_OF_A_FILE
    ],
)
"""A recipe as its file has it: schema, model and search are not parsed yet."""


def checked_tables(
    data: Mapping[str, Any], name: str
) -> tuple[Any, Schema, dict[str, Bounds | Literal[False]]]:
    """The parts of a recipe, checked but for the model's settings, which need PyTorch."""
    tables = parse(_Tables, data, f"recipe {name}:")
    check_seed(tables.seed)
    check_seed(tables.seed if tables.data_seed is None else tables.data_seed, "data_seed")
    schema = Schema.from_dict(tables.schema, f"recipe {name}: schema")
    search = parse_space(tables.search, f"recipe {name}: search")
    return tables, schema, search
