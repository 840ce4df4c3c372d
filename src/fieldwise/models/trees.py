"""Gradient-boosted trees of another library as a network: the columns that they read, and their text as its state.

Letters: B batch, C columns, F fields.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from fieldwise.config import Settings
from fieldwise.errors import BundleError, ConfigError, FieldwiseError, first_line
from fieldwise.layers.embedding import Assembled
from fieldwise.layout import Batch, FieldLayout, Layout, check_batch
from fieldwise.models.settings import Positive, Size, check_annotated
from fieldwise.schema.label import Task

if TYPE_CHECKING:
    from fieldwise.data.table import EncodedTable  # which loads Polars

MAX_BAG_VALUES = 256
"""A bag has a column per value; one with more values is not read, and no history is."""
ROWS_AT_ONCE = 1 << 16
"""Of an encoded table that may lie on disk."""


class Watch(Protocol):
    """Follows a training of trees."""

    def after_tree(self, trees: int, value: float) -> bool:
        """Whether another tree follows; told their number, and their `monitor` on the validation rows."""

    def interrupted(self) -> None:
        """Told that Ctrl-C has ended the training."""


class TreeFeatures:
    """The columns that trees read of encoded rows.

    A number is as its encoder scales it, a vector a column per number, a bin its rank, a category
    its row within the field, and a bag a column per value of its vocabulary, which counts it.
    Missing and unknown values, and the vectors of ids without one, are NaN.

    Attributes:
        fields: the field of each column [C].
        categories: the columns of categories.
        left_out: names of fields that no column is of: histories, and bags of many values.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.left_out = [f.name for f in layout.fields if _is_left_out(f)]
        fields: list[int] = []
        self.categories: list[int] = []
        for position, field in enumerate(layout.fields):
            if _is_left_out(field):
                continue
            if field.kind == "id" and not field.ordered:
                self.categories.append(len(fields))
            columns = field.rows if field.kind == "bag" else max(1, field.numbers)
            fields += [position] * columns
        self.fields = np.array(fields, dtype=np.int64)

    @property
    def bytes_per_row(self) -> int:
        """Of the columns of a row, and their bins in the library."""
        return 5 * len(self.fields)

    @cached_property
    def _local_rows(self) -> np.ndarray:
        return self.layout.local_rows()

    def matrix(self, batch: Batch) -> np.ndarray:
        """The columns of a batch [B, C], float32."""
        if not isinstance(batch, Assembled):
            check_batch(batch, self.layout)
        x_BC = np.empty((batch.size, len(self.fields)), np.float32)
        self._fill(x_BC, batch)
        return x_BC

    def of_table(self, table: "EncodedTable") -> np.ndarray:
        """The columns of all rows of a table [N, C], float32."""
        x_NC = np.empty((len(table), len(self.fields)), np.float32)
        for start in range(0, len(table), ROWS_AT_ONCE):
            rows = slice(start, min(start + ROWS_AT_ONCE, len(table)))
            batch, _ = table.batch(rows)
            self._fill(x_NC[rows], batch)
        return x_NC

    def _fill(self, x_BC: np.ndarray, batch: Batch) -> None:
        ids = batch.ids.cpu().numpy()
        values = batch.values.cpu().numpy()
        column = 0
        single = 0
        number = 0
        bag = 0
        for field in self.layout.fields:
            if field.kind == "bag":
                if not _is_left_out(field):
                    x_BC[:, column : column + field.rows] = self._counts(batch, field, bag)
                    column += field.rows
                bag += 1
                continue

            local = self._local_rows[ids[:, single]]
            single += 1
            absent_rows = 2 if field.unknown else 1  # that of missing values, and of unknown ones
            end = column + max(1, field.numbers)
            if field.numbers:
                x_BC[:, column:end] = values[:, number : number + field.numbers]
                number += field.numbers
            else:
                x_BC[:, column] = local
            is_absent = local < absent_rows
            if field.by_id:
                is_absent = local != absent_rows  # the rows after it are of ids without a vector
            x_BC[is_absent, column:end] = np.nan
            column = end

    def _counts(self, batch: Batch, field: FieldLayout, bag: int) -> np.ndarray:
        """How often each value of a field is in the bag of each row [B, rows of the field]."""
        bags_per_row = self.layout.num_bags
        segments = batch.bag_segments.cpu().numpy()
        is_of_field = segments % bags_per_row == bag
        rows = segments[is_of_field] // bags_per_row
        local = self._local_rows[batch.bag_ids.cpu().numpy()[is_of_field]]
        cells = rows * field.rows + local
        counts = np.bincount(cells, minlength=batch.size * field.rows)
        return counts.reshape(batch.size, field.rows)


def _is_left_out(field: FieldLayout) -> bool:
    return field.kind == "bag" and (field.ordered or field.rows > MAX_BAG_VALUES)


@dataclass(frozen=True, kw_only=True, eq=False)
class TreeRows:
    """Rows for a training of trees: their columns [N, C], targets [N], and weights [N] or None.

    `shift` is added to the logit of each row before it is measured: that of a sample (`Sampled`).
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None
    shift: float = 0.0

    @property
    def start(self) -> np.ndarray | None:
        """The logits [N] that trees add to; None if they are 0."""
        return np.full(len(self.y), self.shift) if self.shift else None


@dataclass(frozen=True, kw_only=True)
class Boosting:
    """What a training of trees is asked for.

    Args:
        task: of the label.
        monitor: the metric of the validation rows that `Watch` is told.
        trees: the largest number of trees.
        learning_rate: factor of every tree's values; None if the library chooses.
        seed: of everything random.
    """

    task: Task
    monitor: str
    trees: int
    learning_rate: float | None
    seed: int


@dataclass(frozen=True, kw_only=True)
class TreeSettings(Settings, ABC):
    """Base class for settings of gradient-boosted trees (abstract).

    Args:
        learning_rate: factor of every tree's values; None for the library's own choice.
        max_trees: the largest number of trees; validation rows end the training before.
        patience: training stops after this many trees without a better `training.monitor`.
    """

    learning_rate: Positive | None = None
    max_trees: Size = 5000
    patience: Size = 50

    def check(self) -> None:
        check_annotated(self)
        super().check()

    @abstractmethod
    def library(self) -> Any:
        """The library's module; a MissingExtraError if it is not installed."""


class TreesNetwork(nn.Module, ABC):
    """A network whose logit is the sum of the leaves that a row falls into, of trees that a library has fitted.

    Buffers: `text` [bytes] uint8, the trees in their library's text format; empty before training,
    and the logit is then 0. `shift`, float64, is added to the trees' logit (`Sampled`). There are no
    parameters and no gradients.

    Shape:
        forward: Batch of B rows -> [B], float64.
    """

    title: ClassVar[str]
    metrics: ClassVar[dict[str, str]]
    """The library's names of the metrics that it can stop by."""

    settings: TreeSettings

    def __init__(self, layout: Layout, settings: TreeSettings) -> None:
        super().__init__()
        self.settings = settings
        self.features = TreeFeatures(layout)
        if not len(self.features.fields):
            raise ConfigError(
                f"{self.title} reads categories, numbers and bags of at most {MAX_BAG_VALUES} values, found no such "
                "field: add one to the schema"
            )
        self.text = nn.Buffer(torch.empty(0, dtype=torch.uint8))
        self.shift = nn.Buffer(torch.zeros((), dtype=torch.float64))
        self._trees: Any = None

    @abstractmethod
    def fit(self, train: TreeRows, valid: TreeRows | None, boosting: Boosting, watch: Watch) -> Any:
        """The library's model, fitted on rows; `keep` makes it the network's."""

    @abstractmethod
    def learning_rate_of(self, model: Any) -> float:
        """The learning rate that a fitted model has."""

    @abstractmethod
    def _text_of(self, model: Any, trees: int) -> str:
        """The library's text of a model's first trees."""

    @abstractmethod
    def _read(self, text: str) -> Any:
        """The library's model of a text."""

    @abstractmethod
    def _columns_of(self, model: Any) -> int:
        """How many columns a model reads."""

    @abstractmethod
    def _leaves_of(self, model: Any) -> int:
        """How many leaves a model has."""

    @abstractmethod
    def _scores(self, model: Any, x_BC: np.ndarray) -> np.ndarray:
        """The sums of leaves [B] of at least one row."""

    @abstractmethod
    def _contributions(self, model: Any, x_BC: np.ndarray) -> np.ndarray:
        """Each column's SHAP value, and the expected sum [B, C + 1]."""

    def keep(self, model: Any, trees: int) -> None:
        """Take the first trees of a model that `fit` has returned."""
        self._set_text(self._text_of(model, trees).encode())

    def model(self) -> Any:
        """The library's own model: a `lightgbm.Booster`, a `catboost.CatBoost`.

        Errors:
            ConfigError: the network is not trained.
            MissingExtraError: the library is not installed.
        """
        if self._trees is None:
            if not len(self.text):
                raise ConfigError(f"{self.title} has no trees before it is trained: train it")
            self._trees = self._read(self.text.cpu().numpy().tobytes().decode())
        return self._trees

    @property
    def leaves(self) -> int:
        """The number of leaves, the numbers that trees have learned."""
        return self._leaves_of(self.model()) if len(self.text) else 0

    def forward(self, batch: Batch) -> Tensor:
        scores = np.zeros(batch.size)
        if batch.size and len(self.text):
            scores = self._scores(self.model(), self.features.matrix(batch)) + self.shift.item()
        return torch.from_numpy(scores).to(batch.ids.device)

    def contributions(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """SHAP values of the fields [B, F] (Lundberg et al., 2020), and the expected logit [B]; they add up to it.

        A bag's is the sum over its values' columns; a field that trees do not read has 0.
        """
        result = np.zeros((batch.size, self.features.layout.num_fields))
        if not batch.size or not len(self.text):
            return result, np.zeros(batch.size)
        of_columns = self._contributions(self.model(), self.features.matrix(batch))
        for column, field in enumerate(self.features.fields):
            result[:, field] += of_columns[:, column]
        return result, of_columns[:, -1] + self.shift.item()

    def _set_text(self, text: bytes) -> None:
        """Replace the trees by those of a text, which must read as many columns as there are."""
        self.text = nn.Buffer(
            torch.frombuffer(bytearray(text), dtype=torch.uint8).to(self.text.device)
        )
        self._trees = None
        try:
            columns = self._columns_of(self.model())
        except FieldwiseError:
            raise
        except Exception as e:  # of the library, which has its own
            raise BundleError(
                f"the trees cannot be read by {self.title}: {first_line(e)}; train the model again, or copy the bundle "
                "again"
            ) from None
        if columns != len(self.features.fields):
            raise BundleError(
                f"trees belong to the fields that they were trained on: they read {columns} columns, and these fields "
                f"have {len(self.features.fields)}; load the bundle that they were saved with"
            )

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        text = state_dict.get(f"{prefix}text")
        if text is not None and len(text):
            self._set_text(text.cpu().numpy().tobytes())
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        """The state that a copy keeps: the text, of which the library's model is made again."""
        return {**self.__dict__, "_trees": None}


def trees_of(network: nn.Module) -> Iterator[TreesNetwork]:
    """The networks of trees in a network."""
    return (module for module in network.modules() if isinstance(module, TreesNetwork))
