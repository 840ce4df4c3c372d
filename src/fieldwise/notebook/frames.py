"""Objects as pandas frames (extra `pandas`)."""

from typing import TYPE_CHECKING

import polars as pl

from fieldwise.errors import MissingExtraError
from fieldwise.explain.explanation import Explanation
from fieldwise.runs.leaderboard import Board
from fieldwise.training.result import FitResult

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["explanation_frame", "leaderboard_frame", "to_pandas", "training_frame"]


def to_pandas(frame: pl.DataFrame) -> "pd.DataFrame":
    """A polars frame as a pandas frame.

    Errors:
        MissingExtraError: pandas or pyarrow is missing.
    """
    try:
        return frame.to_pandas()
    except ImportError:
        raise MissingExtraError("to_pandas needs pandas and pyarrow: pip install 'fieldwise[pandas]'") from None


def training_frame(result: FitResult) -> pl.DataFrame:
    """A frame with a row per evaluation: epoch, learning_rate, seconds, train_loss, valid_METRIC, kept."""
    rows = [
        {"epoch": e.epoch, "learning_rate": e.learning_rate, "seconds": e.seconds, "train_loss": e.train_loss}
        | {f"valid_{name}": float(value) for name, value in e.metrics.items()}
        | {"kept": e.epoch == result.best.epoch}
        for e in result.history
    ]
    return pl.DataFrame(rows, schema_overrides={"train_loss": pl.Float64}, infer_schema_length=None)


def explanation_frame(explanation: Explanation) -> pl.DataFrame:
    """A frame with a row per explained row and field: row, field, value, contribution, score, prediction."""
    rows, fields = explanation.contributions.shape
    of_rows = pl.DataFrame(
        {"row": range(rows), "score": explanation.subject.logit, "prediction": explanation.prediction}
    )
    values = explanation.subject.values
    cells = pl.DataFrame(
        {
            "row": [row for row in range(rows) for _ in range(fields)],
            "field": list(explanation.subject.fields) * rows,
            "value": [value for row in values.iter_rows() for value in row],
            "contribution": explanation.contributions.ravel(),
        },
        schema_overrides={"value": pl.String},
    )
    return cells.join(of_rows, on="row", how="left", maintain_order="left")


def leaderboard_frame(board: Board) -> pl.DataFrame:
    """A frame with a row per recipe: METRIC, METRIC_low, METRIC_high, gains over the baseline, and costs."""
    rows = []
    for line in board.lines:
        row: dict[str, object] = {"recipe": line.recipe, "seeds": len(line.seeds)}
        for name, found in line.metrics.items():
            gain = line.against[name].estimate if line.against else None
            row |= {name: found.value, f"{name}_low": found.low, f"{name}_high": found.high}
            row |= {
                f"{name}_gain": None if gain is None else gain.value,
                f"{name}_gain_low": None if gain is None else gain.low,
                f"{name}_gain_high": None if gain is None else gain.high,
                f"{name}_p": None if gain is None else gain.p,
            }
        row |= {"parameters": line.parameters, "epochs": line.epochs, "seconds": line.seconds}
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)
