"""The features of a recipe: columns of its rows, computed from the log's own rows and other tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.data.prepare.row_weights import TRIALS, read_weights
from fieldwise.errors import ConfigError, SchemaError
from fieldwise.features.asof import check_names, feature_columns
from fieldwise.features.definitions import Feature
from fieldwise.features.timed_rows import TimedRows, as_numbers
from fieldwise.schema import Schema
from fieldwise.storage.scratch import MemoryBudget


@dataclass(frozen=True, kw_only=True)
class LogFeatures:
    """Features of a schema's log, whose labels they may have as values."""

    features: Sequence[Feature]
    schema: Schema

    @property
    def made(self) -> tuple[str, ...]:
        """The new columns."""
        return tuple(name for feature in self.features for name in feature.columns)

    def check(self, frame: pl.DataFrame, *, has_negatives: bool) -> None:
        """Check that a table has what the features read, and that a field reads each new column."""
        if self.schema.time is None:
            raise ConfigError(
                "[[features]] are as of each row's time, and the schema has none: set time = COLUMN in the schema"
            )
        check_names(self.features, frame.columns)
        for feature in self.features:
            self._check_labels(feature, has_negatives=has_negatives)
        for name in self.made:
            if name not in self.schema.columns:
                raise SchemaError(
                    f"a field must read each feature: the schema has none of column {name!r}; add "
                    f'{{ kind = "numeric", name = "{name}" }}, or the kind of its values'
                )

    def _check_labels(self, feature: Feature, *, has_negatives: bool) -> None:
        """Check that a feature reads labels as values alone, once they are known."""
        label_columns = [label.column for label in self.schema.labels]
        for column in (*feature.keys, feature.known):
            if column in label_columns:
                raise SchemaError(
                    f"the feature {feature.label!r} needs the row's own label, {column!r}, which is not known at its "
                    "time: choose another column"
                )
        if feature.table is not None or feature.value not in self._label_numbers():
            return
        if feature.delay is None and feature.known is None:
            raise ConfigError(
                f"a label is known some time after its row: the feature {feature.label!r} needs a delay, such as "
                "delay = '1h', or known, a column"
            )
        if self.schema.label.trials is not None and not feature.needs_number:
            raise ConfigError(
                f"of a label with trials features take sums, means and rates: {feature.label!r} is a {feature.kind}; "
                "choose another kind, or another value"
            )
        if has_negatives:
            raise ConfigError(
                f"the feature {feature.label!r} needs the label of every row, found [negatives] too: count rows "
                "instead"
            )

    def _label_numbers(self) -> dict[str, int]:
        """The number of each label by its name and its column."""
        names = [(label.name, label.column) for label in self.schema.labels]
        return {word: number for number, words in enumerate(names) for word in words}

    def add(
        self,
        frames: Mapping[str, pl.DataFrame],
        events: Mapping[str, pl.DataFrame],
        targets: Mapping[str, np.ndarray],
        *,
        budget: MemoryBudget,
    ) -> dict[str, pl.DataFrame]:
        """The tables of all parts with the features.

        Args:
            frames: the rows of each part; sampled negatives among them see events, and are none.
            events: the log's rows of each part.
            targets: the targets [N, T] of the events.
            budget: rows that are processed at once.
        """
        log = self.rows(pl.concat(list(events.values())), list(targets.values()), budget=budget)
        rows = log
        if frames is not events:
            rows = self.rows(pl.concat(list(frames.values())), [], budget=budget)
        columns = feature_columns(rows, log, self.features, budget=budget)
        with_features = {}
        first = 0
        for name, frame in frames.items():
            of_part = [column.slice(first, frame.height) for column in columns]
            with_features[name] = frame.with_columns(of_part)
            first += frame.height
        return with_features

    def rows(
        self, frame: pl.DataFrame, targets: Sequence[np.ndarray], *, budget: MemoryBudget
    ) -> TimedRows:
        """Rows of the log with their times, and with targets [N, T] of consecutive rows as labels."""
        schema = self.schema
        assert schema.time is not None, "checked before the split"
        labels = {}
        trials = {}
        label = schema.label
        if targets and label.trials is not None:  # the only label, whose targets are shares
            what = f"label column {label.column!r}"
            positives = as_numbers(frame, label.column, what, budget=budget)
            number = read_weights(frame, label.trials, TRIALS, schema.missing, budget=budget)
            labels = dict.fromkeys((label.name, label.column), positives)
            trials = dict.fromkeys(labels, number)
        elif targets:
            for name, number_of_label in self._label_numbers().items():
                of_parts = [y[:, number_of_label] for y in targets]
                labels[name] = budget.concatenate(of_parts, np.float64)
        return TimedRows.of(
            frame,
            schema.time,
            schema.time_format,
            labels=labels,
            trials=trials,
            budget=budget,
        )
