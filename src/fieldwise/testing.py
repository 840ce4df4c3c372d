"""Tools for testing your own model: checks that every model must pass, and small logs, layouts and batches.

The checks are the contract of models, which training, saving and serving rely on. Each takes
settings and a layout and raises an AssertionError that describes the failure.
"""

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Sequence_
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fieldwise.layout import Batch, FieldLayout, Layout
from fieldwise.models.build import build_network
from fieldwise.models.registry import as_settings
from fieldwise.models.settings import ModelSettings
from fieldwise.schema import Bag, Categorical, Label, Numeric, Pooling, Role, Schema, Sequence

__all__ = [
    "CHECKS",
    "check_model",
    "random_batch",
    "rows_of",
    "small_layout",
    "small_log",
    "small_schema",
]

CLOSE = 1e-4
STEPS = 250
LEARNED = 0.6
_Field = tuple[Literal["id", "value", "bag", "vector"], Role, int, Pooling]
_CATEGORICAL: tuple[_Field, ...] = (
    ("id", "user", 5, "mean"),
    ("id", "item", 4, "mean"),
    ("id", "context", 3, "mean"),
    ("id", "item", 6, "mean"),
)
_MIXED: tuple[_Field, ...] = (
    ("bag", "item", 5, "max"),
    ("id", "user", 4, "mean"),
    ("value", "item", 1, "mean"),
    ("bag", "user", 6, "mean"),
    ("id", "context", 3, "mean"),
    ("value", "user", 2, "mean"),
    ("bag", "context", 3, "sum"),
)
_VECTORS: tuple[_Field, ...] = (
    ("id", "user", 4, "mean"),
    ("value", "user", 2, "mean"),
    ("vector", "item", 2, "mean"),
    ("bag", "item", 5, "mean"),
    ("vector", "context", 2, "mean"),
    ("id", "item", 6, "mean"),
)
_FIELDS = {"categorical": _CATEGORICAL, "mixed": _MIXED, "vectors": _VECTORS}
_WIDTH = 3
"""Numbers of a vector."""


def small_schema() -> Schema:
    """The schema of `small_log`: a user, their history, an item with genres and a price, the hour, and a click.

    >>> [field.name for field in small_schema().fields]
    ['user', 'history', 'item', 'genres', 'price', 'hour']
    """
    return Schema(
        fields=(
            Categorical("user", role="user"),
            Sequence("history", role="user", max_length=3, shares="item"),
            Categorical("item", role="item"),
            Bag("genres", role="item"),
            Numeric("price", role="item"),
            Numeric("hour", encoding="quantile", bins=3),
        ),
        label=Label("click"),
    )


def small_log(rows: int = 40, seed: int = 0) -> pl.DataFrame:
    """Random rows with the columns of `small_schema`; there is no signal to learn.

    >>> small_log(3).columns
    ['user', 'history', 'item', 'genres', 'price', 'hour', 'click']
    """
    rng = np.random.default_rng(seed)

    def names(prefix: str, count: int, size: int) -> list[str]:
        return [f"{prefix}{k}" for k in rng.integers(0, count, size)]

    return pl.DataFrame(
        {
            "user": names("u", 6, rows),
            "history": ["|".join(names("i", 5, size)) for size in rng.integers(0, 5, rows)],
            "item": names("i", 9, rows),
            "genres": [names("g", 4, size) for size in rng.integers(0, 4, rows)],
            "price": rng.normal(size=rows),
            "hour": rng.integers(0, 24, rows),
            "click": rng.integers(0, 2, rows),
        }
    )


def small_layout(kind: Literal["categorical", "mixed", "vectors"] = "mixed") -> Layout:
    """A layout of a few fields of all roles: only categorical, with numbers and bags of every pooling, or with vectors.

    >>> small_layout("categorical").num_fields, small_layout().num_fields
    (4, 7)
    """
    fields = []
    offset = 0
    for i, (what, role, rows, pooling) in enumerate(_FIELDS[kind]):
        fields.append(
            FieldLayout(
                name=f"f{i}",
                kind=what,
                role=role,
                offset=offset,
                rows=rows,
                pooling=pooling,
                width=_WIDTH if what == "vector" else 0,
            )
        )
        offset += rows
    return Layout(tuple(fields))


def random_batch(
    layout: Layout,
    rows: int,
    seed: int = 0,
    *,
    ids: torch.dtype = torch.int32,
    numbers: torch.dtype = torch.float32,
) -> Batch:
    """B rows of random ids, numbers and bags of 0 to 3 values, of the types that an encoder returns.

    >>> batch = random_batch(small_layout(), 5)
    >>> batch.ids.shape, batch.ids.dtype, batch.values.shape
    (torch.Size([5, 4]), torch.int32, torch.Size([5, 2]))
    """
    rng = np.random.default_rng(seed)
    singles = layout.single_fields
    bags = layout.bag_fields
    single_ids = [f.to_table(rng.integers(0, f.rows - len(f.piece_rows()), rows)) for f in singles]
    values = [rng.normal(size=rows) for f in layout.fields for _ in range(f.numbers)]
    bag_ids, segments, weights = _random_bags(bags, rows, rng)
    return Batch(
        ids=torch.tensor(np.array(single_ids).reshape(len(singles), rows).T.copy(), dtype=ids),
        values=torch.tensor(np.array(values).reshape(len(values), rows).T.copy(), dtype=numbers),
        bag_ids=torch.tensor(bag_ids, dtype=ids),
        bag_segments=torch.tensor(segments, dtype=torch.int64),
        bag_weights=torch.tensor(weights, dtype=numbers),
    )


def _random_bags(
    bags: Sequence_[FieldLayout], rows: int, rng: np.random.Generator
) -> tuple[list[int], list[int], list[float]]:
    """Ids, segments and weights of bags of 0 to 3 values, row by row."""
    ids: list[int] = []
    segments: list[int] = []
    weights: list[float] = []
    for row in range(rows):
        for position, field in enumerate(bags):
            count = int(rng.integers(0, 4))
            weight = 1.0
            if field.pooling == "mean":
                weight = 1 / max(count, 1)
            ids += list(field.to_table(rng.integers(0, field.rows, count)))
            segments += [row * len(bags) + position] * count
            weights += [weight] * count
    return ids, segments, weights


def rows_of(layout: Layout, batch: Batch, rows: Sequence_[int]) -> Batch:
    """The batch of the chosen rows.

    >>> rows_of(small_layout(), random_batch(small_layout(), 5), [4, 1]).size
    2
    """
    return batch.rows(torch.tensor(rows, dtype=torch.int64), layout.num_bags)


def check_model(model: Any, layout: Layout | None = None) -> None:
    """Run all of `CHECKS` on a model.

    Args:
        model: settings, or a class of a network or of settings, as for `Recommender`.
        layout: the fields to build it on; `small_layout()`, which has every kind of field, if
            omitted.

    Errors:
        AssertionError: a check fails. ConfigError: it is not a model.

    >>> from fieldwise import FM
    >>> check_model(FM(embedding_dim=4))
    """
    settings = as_settings(model)
    for check in CHECKS.values():
        check(settings, small_layout() if layout is None else layout)


def _one_logit_a_row(settings: ModelSettings, layout: Layout) -> None:
    network = build_network(settings, layout, 0).eval()
    for rows in (0, 1, 7):
        logit = network(random_batch(layout, rows))
        assert isinstance(logit, Tensor), (
            f"forward(batch) must return a tensor, found {type(logit).__name__}"
        )
        assert logit.shape == (rows,), (
            f"a batch of {rows} rows must have logits [{rows}], found {list(logit.shape)}"
        )
        assert logit.dtype == torch.float32, f"logits must be float32, found {logit.dtype}"
        assert bool(torch.isfinite(logit).all()), f"logits of a batch of {rows} rows must be finite"


def _a_row_is_scored_by_itself(settings: ModelSettings, layout: Layout) -> None:
    network = _randomized(settings, layout)
    batch = random_batch(layout, 6)
    with torch.no_grad():
        whole = network(batch)
        single = torch.cat([network(rows_of(layout, batch, [b])) for b in range(6)])
    off = float((whole - single).detach().abs().max())
    assert off <= CLOSE * max(1.0, float(whole.detach().abs().max())), (
        f"in evaluation a row's logit must not depend on the others of its batch, found a difference of {off:g}"
    )


def _every_weight_has_a_gradient(settings: ModelSettings, layout: Layout) -> None:
    network = _randomized(settings, layout).train()
    batch = random_batch(layout, 24)
    label = (torch.arange(batch.size) % 2).float()
    loss = _training_loss(network, batch, label)
    assert bool(torch.isfinite(loss)), f"the loss must be finite, found {float(loss.detach()):g}"
    loss.backward()  # type: ignore[no-untyped-call]
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, (
            f"the parameter {name} has no gradient: use it or remove it"
        )
        gradient = parameter.grad
        if gradient.is_sparse:
            gradient = gradient.coalesce().values()
        assert bool(torch.isfinite(gradient).all()), f"the gradient of {name} must be finite"


def _a_seed_decides_the_weights(settings: ModelSettings, layout: Layout) -> None:
    first, second = (build_network(settings, layout, 3).state_dict() for _ in range(2))
    for name in first:
        assert torch.equal(first[name], second[name]), (
            f"one seed must give the same weights, but {name} differs"
        )


def _seeded_training_repeats(settings: ModelSettings, layout: Layout) -> None:
    states = []
    for _ in range(2):
        network = build_network(settings, layout, 3).train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(4)
            _trained(network, random_batch(layout, 16), steps=3)
        states.append(network.state_dict())
    for name in states[0]:
        assert torch.equal(states[0][name], states[1][name]), (
            f"seeded training must repeat itself: {name} differs"
        )


def _weights_are_all_there_is(settings: ModelSettings, layout: Layout) -> None:
    network = _randomized(settings, layout)
    batch = random_batch(layout, 7)
    other = build_network(settings, layout, 1).eval()
    other.load_state_dict(network.state_dict())
    assert torch.equal(other(batch), network(batch)), (
        "a new network must score like the one whose state_dict it loads: keep everything that training changes "
        "in parameters and buffers"
    )


def _evaluation_changes_nothing(settings: ModelSettings, layout: Layout) -> None:
    network = _randomized(settings, layout)
    batch = random_batch(layout, 16)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert torch.equal(network(batch), network(batch)), (
        "in evaluation a batch must have the same logits every time"
    )
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before[name]), (
            f"evaluation must change no tensor, but it changed {name}"
        )


def _it_learns(settings: ModelSettings, layout: Layout) -> None:
    # without dropout, to test what it can represent
    network = build_network(settings, layout, 0).eval()
    loss = _trained(network, random_batch(layout, 32), steps=STEPS, until=LEARNED)
    assert loss < LEARNED, (
        f"32 rows must be learned to a logloss below {LEARNED}, found {loss:.3f} after {STEPS} steps"
    )


CHECKS: Mapping[str, Callable[[ModelSettings, Layout], None]] = {
    "one logit a row": _one_logit_a_row,
    "a row is scored by itself": _a_row_is_scored_by_itself,
    "every weight has a gradient": _every_weight_has_a_gradient,
    "a seed decides the weights": _a_seed_decides_the_weights,
    "seeded training repeats": _seeded_training_repeats,
    "weights are all there is": _weights_are_all_there_is,
    "evaluation changes nothing": _evaluation_changes_nothing,
    "it learns": _it_learns,
}
"""The checks by name, for `pytest.mark.parametrize`."""


def _randomized(settings: ModelSettings, layout: Layout) -> nn.Module:
    """A network in evaluation mode with parameters far from their initial values, which could hide mistakes."""
    network = build_network(settings, layout, 0).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return network


def _training_loss(network: nn.Module, batch: Batch, label: Tensor) -> Tensor:
    """The loss of a batch as in the training loop: with the auxiliary loss, if the network has one."""
    with_auxiliary: Any = getattr(network, "forward_with_auxiliary", None)
    auxiliary = 0.0
    if with_auxiliary is None:
        logit = network(batch)
    else:
        logit, auxiliary = with_auxiliary(batch, label)
    loss: Tensor = F.binary_cross_entropy_with_logits(logit, label) + auxiliary
    return loss


def _trained(network: nn.Module, batch: Batch, *, steps: int, until: float = 0.0) -> float:
    """The last step's loss on the logits, after `steps` steps of Adam or when it is below `until`."""
    optimizer = torch.optim.Adam(network.parameters(), lr=0.03)
    label = (torch.arange(batch.size) % 2).float()
    result = float("inf")
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(network(batch), label)
        result = float(loss.detach())
        if result < until:
            break
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return result
