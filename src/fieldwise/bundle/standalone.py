"""Raw rows to predictions with NumPy and ONNX Runtime, without fieldwise: `python encode.py < rows.json`.

It stands beside `model.onnx`, `encoder.json` (fields, vocabularies, bins, scales), `layout.json`
(their rows in the embedding table) and `labels.json` (calibrations). A
row is a mapping from columns to texts, numbers, true or false, dates, times and durations, None,
and lists of these. The result is that of fieldwise for a table of this row.

    rows = [{"user": "u1", "tags": ["a", "b"], "price": "2.5"}]
    print(predict(rows))
"""

import datetime as dt
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

HERE = Path(__file__).parent
WHITE = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
FLOAT32_MAX = float(np.finfo(np.float32).max)
NUMBER = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE
)
FORMATS = {  # thousands separator, as a pattern, and decimal mark
    "1,234.5": (",", "."),
    "1.234,5": (r"\.", ","),
    "1 234,5": ("[ \xa0\u202f\u2009]", ","),
    "1'234.5": ("['\u2019]", "."),
}
LISTS = ("bag", "sequence")
# a field's first rows
MISSING = 0
UNKNOWN = 1
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def predict(rows: Sequence[Mapping[str, Any]]) -> np.ndarray:
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
    ids: list[list[int]] = []
    values: list[list[float]] = []
    bags: list[list[int]] = []
    weights: list[float] = []
    segments: list[int] = []
    for number, row in enumerate(rows):
        ids.append([])
        values.append([])
        for field in _fields():
            column = field["column"]
            if column not in row:
                raise ValueError(
                    f"every field needs a value, or None if it is missing: row {number} has no {column!r}"
                )
            try:
                result, scaled = _cell(field, row[column])
            except (TypeError, ValueError, OverflowError) as e:
                raise ValueError(
                    f"row {number}, column {column!r}: {e}, found {row[column]!r:.80}"
                ) from None
            if scaled is not None:
                values[-1].append(scaled)
            if field["kind"] in LISTS:
                segments += [len(bags)] * len(result)
                weights += [1 / len(result) if field["pooling"] == "mean" else 1.0] * len(result)
                bags.append([_table_row(field, cell) for cell in result])
            else:
                ids[-1].append(_table_row(field, result[0]))
    return {
        "ids": np.array(ids, np.int32).reshape(len(rows), -1),
        "values": np.array(values, np.float32).reshape(len(rows), -1),
        "bag_ids": np.array([cell for bag in bags for cell in bag], np.int32),
        "bag_segments": np.array(segments, np.int64),
        "bag_weights": np.array(weights, np.float32),
    }


def predictions(logit: np.ndarray) -> np.ndarray:
    """What the model's outputs mean: calibrated probabilities, or numbers within the label's range."""
    labels = json.loads((HERE / "labels.json").read_text("utf-8"))
    columns = np.asarray(logit, np.float64).reshape(len(logit), len(labels)).T
    results = [_prediction(label, column) for label, column in zip(labels, columns, strict=True)]
    return results[0] if len(labels) == 1 else np.stack(results, axis=1)


@cache
def _marks() -> tuple[set[str], set[float]]:
    """The marks of missing numbers, in lower case, and those that are numbers, such as -999."""
    marks = json.loads((HERE / "encoder.json").read_text("utf-8"))["missing"]
    texts = {mark.strip(WHITE).lower() for mark in marks}
    numbers = {float(text) for text in texts if NUMBER.fullmatch(text)}
    return texts, {number for number in numbers if math.isfinite(number)}


@cache
def _fields() -> list[dict[str, Any]]:
    """The fields with their fitted parts, and where in the shared table the runs of their rows begin."""
    entries = json.loads((HERE / "encoder.json").read_text("utf-8"))["fields"]
    places = json.loads((HERE / "layout.json").read_text("utf-8"))["fields"]
    fields_of_rows = {
        entry["field"]["name"]: {"fitted": entry["fitted"]}
        for entry in entries
        if "fitted" in entry
    }
    for one in fields_of_rows.values():
        if one["fitted"]["kind"] == "vocabulary":
            one["rows"] = _rows(one["fitted"]["values"])
    results = []
    for field, place in zip((entry["field"] for entry in entries), places, strict=True):
        runs = [(0, place["offset"]), *place["extents"]]
        results.append(
            {**fields_of_rows[field.get("shares") or field["name"]], **field, "runs": runs}
        )
    return results


def _table_row(field: Mapping[str, Any], row: int) -> int:
    """The row in the shared table of a row within a field."""
    start, first = next(run for run in reversed(field["runs"]) if run[0] <= row)
    return int(first + row - start)


def _rows(values: Sequence[str]) -> dict[str, int]:
    """The row of each value; of booleans in every way of writing them."""
    rows = {value: row for row, value in enumerate(values, UNKNOWN + 1)}
    lowered = {value.lower() for value in values}
    if len(lowered) == len(values) and lowered <= {"true", "false"}:
        rows = {
            case: row
            for value, row in rows.items()
            for case in (value.lower(), value.title(), value.upper())
        }
    return rows


def _cell(field: Mapping[str, Any], value: Any) -> tuple[list[int], float | None]:
    """A cell's rows within its field, and its number if the field is a number times a vector."""
    fitted = field["fitted"]
    if fitted["kind"] in ("scaling", "bins"):
        number = _number(value, field.get("number_format"))
        absent = math.isnan(number) or number in _marks()[1]
        logged = (
            math.copysign(float(np.log1p(abs(number))), number) if fitted["logarithm"] else number
        )
        if fitted["kind"] == "bins":
            side: Literal["left", "right"] = "left" if fitted["closed"] == "right" else "right"
            return [
                MISSING if absent else int(np.searchsorted(fitted["edges"], logged, side=side)) + 1
            ], None
        if absent:
            return [MISSING], 1.0 if field["missing"] == "vector" else 0.0
        low, high = fitted.get("clip") or (-FLOAT32_MAX, FLOAT32_MAX)
        return [1], min(max((logged - fitted["shift"]) / fitted["scale"], low), high)
    if field["kind"] not in LISTS:
        return [_row(field, _text(value))], None
    many = (
        value if isinstance(value, list | tuple) else (_text(value) or "").split(field["separator"])
    )
    texts = [text for cell in many if (text := (_text(cell) or "").strip(WHITE))]
    newest = texts if field.get("max_length") is None else texts[-field["max_length"] :]
    return [_row(field, text) for text in newest] or [MISSING], None


def _row(field: Mapping[str, Any], text: str | None) -> int:
    if text is None:
        return MISSING
    if field["fitted"]["kind"] == "vocabulary":
        return int(field["rows"].get(text, UNKNOWN))
    value = 0xCBF29CE484222325  # FNV-1a, 64 bits
    for byte in text.encode():
        value = (value ^ byte) * 0x100000001B3 % (1 << 64)
    return int(value % field["fitted"]["buckets"]) + 1


def _text(value: Any) -> str | None:
    """A value as text; missing and empty ones are None. 12, 12.0 and "12" are the same."""
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, bool | np.bool_):
        return str(value).lower()
    if isinstance(value, int | np.integer):
        return str(int(value))
    if isinstance(value, float | np.floating):
        return _float_text(float(value))
    if isinstance(value, Decimal):
        digits = format(value, "f")
        return digits.rstrip("0").rstrip(".") if "." in digits else digits
    if isinstance(value, dt.timedelta):
        return _float_text(value // dt.timedelta(microseconds=1) / 1e6)
    if isinstance(value, dt.datetime | dt.time):
        return _time_text(value)
    if isinstance(value, dt.date):
        return value.isoformat()
    raise TypeError("a text, a number, true, false, a date, a time, a duration or None is needed")


def _float_text(number: float) -> str | None:
    """The text of a number: of one that 32 bits hold exactly, the shortest that names it among these."""
    if math.isnan(number):
        return None
    if number.is_integer() and abs(number) < 2**53:
        return str(int(number))
    with np.errstate(over="ignore"):
        short = np.float32(number)
    if float(short) == number:
        number = float(np.format_float_scientific(short))
    return (
        np.format_float_positional(number)
        if 1e-5 <= abs(number) < 1e-4
        else repr(number).replace("e-0", "e-")
    )


def _time_text(value: dt.datetime | dt.time) -> str:
    """The text of a time: without zeros at the end of a fraction; a midnight without an offset is its date."""
    offset = value.isoformat()[len(value.replace(tzinfo=None).isoformat()) :]
    fraction = f".{value.microsecond:06}".rstrip("0").rstrip(".")
    local = value.replace(tzinfo=None, microsecond=0)
    if isinstance(local, dt.time):
        return local.isoformat() + fraction
    text = local.isoformat(" ") + fraction + offset
    return text.removesuffix(" 00:00:00")


def _number(value: Any, form: str | None) -> float:
    """A cell as a number; NaN if it is missing."""
    if isinstance(value, str):
        text = value.strip(WHITE)
        plain = text if form is None else _plain_number(text, form)
        if not text or (NUMBER.fullmatch(plain) is None and text.lower() in _marks()[0]):
            return math.nan
        if NUMBER.fullmatch(plain) is None:
            raise ValueError(
                "a number is needed"
                if form is None
                else "a number in the field's number_format is needed"
            )
        number = float(plain)
    elif isinstance(value, dt.timedelta):
        number = value.total_seconds()
    elif isinstance(value, dt.time):
        number = float(value.hour * 3600 + value.minute * 60 + value.second)
    elif isinstance(value, dt.date):
        position = (
            value
            if isinstance(value, dt.datetime)
            else dt.datetime(value.year, value.month, value.day)
        )
        number = float(
            (position.replace(tzinfo=position.tzinfo or dt.UTC) - EPOCH) // dt.timedelta(seconds=1)
        )
    elif value is None or isinstance(
        value, bool | int | float | Decimal | np.bool_ | np.integer | np.floating
    ):
        number = math.nan if value is None else float(value)
    else:
        raise TypeError("a number is needed")
    if abs(number) > FLOAT32_MAX:
        raise ValueError(f"a finite number of at most {FLOAT32_MAX:.1e} is needed")
    return number


def _plain_number(text: str, form: str) -> str:
    """A number in a format as a plain one; an empty text if it does not fit. Its unit may be left out."""
    way = next(way for way in FORMATS if way in form)
    between, mark = FORMATS[way]
    unit = re.escape(form.replace(way, "").strip(WHITE))
    named = rf"(?:{unit})?\s*" if unit else ""
    space = r"\s*" if unit else ""
    whole = rf"([0-9]{{1,3}}(?:{between}[0-9]{{3}})+|[0-9]+)(?:{re.escape(mark)}([0-9]+))?"
    found = re.fullmatch(rf"([+-]?){space}{named}([+-]?){whole}{space}{named}", text, re.IGNORECASE)
    if found is None:
        return ""
    sign, sign_after, digits, fraction = found.groups()
    return f"{sign}{sign_after or ''}{re.sub(between, '', digits)}.{fraction or '0'}"


def _prediction(label: Mapping[str, Any], logit: np.ndarray) -> np.ndarray:
    if label["task"] != "binary":
        return logit if label["range"] is None else logit.clip(*label["range"])
    calibration = label["calibration"]
    if calibration is not None and calibration["kind"] == "platt":
        logit = calibration["slope"] * logit + calibration["intercept"]
    elif calibration is not None:
        p = np.interp(logit, calibration["at"], calibration["probability"])
        logit = np.log(p) - np.log1p(-p)
    small = np.exp(-np.abs(logit))
    return np.asarray(np.where(logit >= 0, 1.0, small) / (1.0 + small))


if __name__ == "__main__":
    print(json.dumps(predict(json.load(sys.stdin)).tolist()))
