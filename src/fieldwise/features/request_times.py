"""Hours and weekdays of requests to a server: of the time that a row states, or of the present."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import polars as pl

from fieldwise.errors import DataError
from fieldwise.features.definitions import OfTime, features_of
from fieldwise.features.timed_rows import MICROSECOND, TimedRows
from fieldwise.schema import Schema
from fieldwise.storage.scratch import NO_LIMIT


@dataclass(frozen=True, kw_only=True)
class RequestTimes:
    """The features of a recipe that depend on a row's time alone.

    Args:
        time: the schema's column of times, and its format.
    """

    features: Sequence[OfTime]
    time: str
    time_format: str | None

    @classmethod
    def of_recipe(cls, settings: Mapping[str, Any], schema: Schema) -> Self | None:
        """Those of a recipe's settings; None if it has none."""
        features = [feature for feature in features_of(settings) if isinstance(feature, OfTime)]
        if not features:
            return None
        assert schema.time is not None, "features need times"
        return cls(features=features, time=schema.time, time_format=schema.time_format)

    def complete(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Rows with the features that they lack.

        Errors:
            DataError: times that are none, or of several types.
        """
        completed = [dict(row) for row in rows]
        labels = {feature.label for feature in self.features}
        lacking = [row for row in completed if not labels <= row.keys()]
        times = np.full(len(lacking), round(time.time() * MICROSECOND))
        stated = [number for number, row in enumerate(lacking) if self.time in row]
        if stated:
            times[stated] = self._times([lacking[number][self.time] for number in stated])
        for feature in self.features:
            for row, value in zip(lacking, feature.values(times), strict=True):
                row.setdefault(feature.label, value)
        return completed

    def _times(self, cells: list[Any]) -> np.ndarray:
        """Times as rows state them, in microseconds."""
        try:
            frame = pl.DataFrame({self.time: cells})
            return TimedRows.of(frame, self.time, self.time_format, budget=NO_LIMIT).times
        except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError, DataError):
            raise DataError(
                "a request's time must be seconds since 1970 or a date in one of the log's formats, the same for all "
                f"rows: column {self.time!r} holds {str(cells[0])[:60]!r}; correct it, or leave it out for the present"
            ) from None
