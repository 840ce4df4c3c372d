"""Raw rows to predictions with NumPy and ONNX Runtime, without fieldwise: `python encode.py < rows.json`.

It stands beside `model.onnx`, `encoder.json` (fields, vocabularies, bins, scales), `layout.json`
(their rows in the embedding table), `labels.json` (calibrations) and, if a field has vectors by id,
`vectors.safetensors`. A
row is a mapping from columns to texts, numbers, true or false, dates, times and durations, None,
and lists of these. The result is that of fieldwise for a table of this row.

    rows = [{"user": "u1", "tags": ["a", "b"], "price": "2.5"}]
    print(predict(rows))
"""

import json
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fieldwise.data.encode.portable import (
    CellEncoder,
    HashedTexts,
    KnownTexts,
    VectorsById,
    encode_rows,
    map_matrices,
    marks_of,
)
from fieldwise.evaluation.binary import sigmoid
from fieldwise.evaluation.calibration import isotonic_logit, platt_logit

HERE = Path(__file__).parent
CELLS: dict[str, Any] = {}
"""The function of a cell of each kind of field; the export fills it."""


def predict(rows: Sequence[Mapping[str, Any]]) -> NDArray[np.float64]:
    """Calibrated probabilities, or numbers of a regression, of raw rows: [N], or [N, labels] with several labels."""
    import onnxruntime  # type: ignore[import-untyped]

    session = onnxruntime.InferenceSession(
        str(HERE / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    arrays = encode(rows)
    (logit,) = session.run(
        None, {tensor.name: arrays[tensor.name] for tensor in session.get_inputs()}
    )
    return predictions(logit)


def encode(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The model's inputs for raw rows.

    Errors:
        ValueError: a row lacks a column, or has a value that its field does not take.
    """
    return encode_rows(rows, _encoders())


def predictions(logit: ArrayLike) -> NDArray[np.float64]:
    """What the model's outputs mean: calibrated probabilities, or numbers within the label's range."""
    labels = json.loads((HERE / "labels.json").read_text("utf-8"))
    columns = np.asarray(logit, np.float64).reshape(-1, len(labels)).T
    results = [_prediction(label, column) for label, column in zip(labels, columns, strict=True)]
    return results[0] if len(labels) == 1 else np.stack(results, axis=1)


class Record:
    """An object of a JSON file; a setting that it does not have is None."""

    def __init__(self, entries: Mapping[str, Any]) -> None:
        vars(self).update(entries)

    def __getattr__(self, name: str) -> Any:
        return None


class Vocabulary(Record, KnownTexts):
    """A fitted vocabulary."""


class Hashing(Record, HashedTexts):
    """A field whose texts are hashed."""


class VectorTable(Record, VectorsById):
    """A table of vectors by id."""


FORMS = {"vocabulary": Vocabulary, "hashing": Hashing, "vector_table": VectorTable}
"""The fitted parts with methods; others are records."""


@cache
def _encoders() -> list[CellEncoder]:
    """The fields with what encodes their cells."""
    encoder = json.loads((HERE / "encoder.json").read_text("utf-8"))
    layouts = json.loads((HERE / "layout.json").read_text("utf-8"))["fields"]
    fitted_of_field = {}
    for entry in encoder["fields"]:
        if "fitted" in entry:
            form = FORMS.get(entry["fitted"]["kind"], Record)
            name = entry["field"]["name"]
            entries = dict(entry["fitted"])
            if form is VectorTable:
                entries["matrix"] = map_matrices(HERE / "vectors.safetensors")[name]
            fitted_of_field[name] = form(entries)
    marks = marks_of(tuple(encoder["missing"]))
    encoders = []
    for entry, layout in zip(encoder["fields"], layouts, strict=True):
        field = Record(entry["field"])
        fitted = fitted_of_field[field.shares or field.name]
        runs = [(0, layout["offset"]), *layout["extents"]]
        is_bag = layout["kind"] == "bag"
        encoders.append(CellEncoder(field, fitted, marks, CELLS[field.kind], is_bag, runs))
    return encoders


def _prediction(label: Mapping[str, Any], logit: NDArray[np.float64]) -> NDArray[np.float64]:
    if label["task"] != "binary":
        return logit if label["range"] is None else logit.clip(*label["range"])
    calibration = label["calibration"]
    if calibration is None:
        return sigmoid(logit)
    if calibration["kind"] == "platt":
        return sigmoid(platt_logit(logit, calibration["slope"], calibration["intercept"]))
    return sigmoid(isotonic_logit(logit, calibration["at"], calibration["probability"]))


if __name__ == "__main__":
    print(json.dumps(predict(json.load(sys.stdin)).tolist()))
