"""What an estimator keeps in its bundle about its training."""

from collections.abc import Mapping
from typing import Any

from fieldwise.bundle.trained_rows import TRAINED_ROWS, trained_rows
from fieldwise.config import to_plain
from fieldwise.data.prepare.prepared import EncodedParts
from fieldwise.estimator.params import params_to_plain
from fieldwise.runs.fit_parts import Fitted
from fieldwise.schema import Schema
from fieldwise.training.result import result_to_plain

__all__ = ["fit_facts"]


def fit_facts(
    params: Mapping[str, Any], fitted: Fitted, encoded: EncodedParts, schema: Schema, dropped: int
) -> dict[str, Any]:
    """`Bundle.about` of a fitted estimator, as plain values.

    Args:
        params: the estimator's parameters.
        fitted: the result of training.
        encoded: the rows that it was trained on.
        schema: their schema.
        dropped: number of rows dropped by the label's rule.
    """
    train, held_out = encoded.parts["train"].frame, encoded.parts["valid"].frame
    about = {
        "estimator": params_to_plain({**params, "training": fitted.settings.training}),
        "defaults": to_plain(fitted.chosen),
        "result": result_to_plain(fitted.result),
        "counts": {"dropped_by_label": dropped, **encoded.counts},
        TRAINED_ROWS: trained_rows(schema, train, held_out, refit=fitted.refit is not None),
    }
    if fitted.refit is not None:
        about["refit"] = to_plain(fitted.refit)
    if fitted.warm_start is not None:
        about["warm_start"] = to_plain(fitted.warm_start)
    return about
