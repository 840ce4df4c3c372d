"""Frappe: context-aware app usage, in the libFM form of He and Chua (Neural Factorization Machines, SIGIR 2017).

L. Baltrunas, K. Church, A. Karatzoglou, N. Oliver: Frappe. arXiv:1505.03014, 2015.
"""

from pathlib import Path

import polars as pl

from fieldwise.data.read.bytesource import open_source
from fieldwise.data.read.delimited import read_delimited
from fieldwise.data.read.libfm import libfm_to_fields, read_libfm
from fieldwise.data.read.public.sets import PublicSet, RemoteFile, find, need, read_checked
from fieldwise.errors import DataError
from fieldwise.storage.checksums import Checksum

__all__ = ["FRAPPE", "load_frappe"]

# Where each field's ids begin among the 5,382 features.
_OFFSETS = {
    "user": 0,
    "item": 957,
    "daytime": 5039,
    "weekday": 5046,
    "isweekend": 5053,
    "homework": 5055,
    "cost": 5058,
    "weather": 5060,
    "country": 5069,
    "city": 5149,
}
_FEATURES = 5382
_CHECKSUMS = {
    "frappe.train.libfm": Checksum(kind="git-sha1", value="176b2aaf1f63dd13d3e66a5c17c8ec8186e91893"),
    "frappe.validation.libfm": Checksum(
        kind="sha256", value="fdf4be563a7dd9b15f7a6e8b32671e90e6e7a2a2bd3af4e10bf13c5ad7e76e9e"
    ),
    "frappe.test.libfm": Checksum(
        kind="sha256", value="a2ebaef3a9af8e55f8bb0d08bc4923965e42e43760ebd7635ac2f8c5db99e097"
    ),
}
_ORIGIN = "https://raw.githubusercontent.com/hexiangnan/neural_factorization_machine/master/data/frappe"


def load_frappe(folder: Path, *, verify: bool = True) -> pl.DataFrame:
    """Read Frappe: the train, validation and test rows, in this order.

    Args:
        folder: with `frappe.train.libfm` (or `frappe.train_positives.libfm`, whose negatives are to be sampled),
            `frappe.validation.libfm` and `frappe.test.libfm`, each plain or `.gz`, here or below `libfm/`; and, for
            raw values, `feature_map.csv` (feature_id, field, raw_value).
        verify: whether the published files' checksums must hold.

    Returns:
        label (1 or -1), user, item, daytime, weekday, isweekend, homework, cost, weather, country, city (all text:
        raw values if there is a feature map, else the ids within the field), split (`train`, `valid`, `test`).

    Errors:
        DataError: a file is absent, malformed or not the published one.
    """
    places = [place for place in (folder, folder / "libfm") if find(place, "frappe.validation.libfm")]
    place = places[0] if places else folder
    sources = {
        "train": need(place, "frappe.train.libfm", "frappe.train_positives.libfm"),
        "valid": need(place, "frappe.validation.libfm"),
        "test": need(place, "frappe.test.libfm"),
    }
    frame = pl.concat(
        [_read(path, verify).with_columns(split=pl.lit(split)) for split, path in sources.items()], how="vertical"
    )
    values = _raw_values(find(place, "feature_map.csv") or find(folder, "feature_map.csv"))
    return frame.with_columns(
        pl.col(name).cast(pl.String) if values is None else pl.col(name).replace_strict(*_mapping(values, name))
        for name in _OFFSETS
    )


def _read(path: Path, verify: bool) -> pl.DataFrame:
    content = read_checked(path, _CHECKSUMS.get(path.name.removesuffix(".gz")) if verify else None)
    frame = libfm_to_fields(read_libfm(path, content), _OFFSETS, path)
    outside = frame.get_column("city") >= _FEATURES - _OFFSETS["city"]
    if outside.any():
        line = int(outside.arg_max() or 0) + 1
        raise DataError(f"Frappe has the feature ids 0 to {_FEATURES - 1}: {path} line {line} holds a greater one")
    return frame.with_columns(pl.col("label").cast(pl.Int64))


def _raw_values(path: Path | None) -> pl.DataFrame | None:
    if path is None:
        return None
    values = read_delimited(open_source(path), separator=",", infer=False)
    if values.columns != ["feature_id", "field", "raw_value"]:
        raise DataError(f"{path} must have the columns feature_id, field, raw_value, found {', '.join(values.columns)}")
    ids = values.get_column("feature_id").cast(pl.Int64, strict=False)
    if ids.has_nulls() or sorted(ids) != list(range(_FEATURES)):
        raise DataError(f"{path} must give each feature id from 0 to {_FEATURES - 1} once; remove it to use plain ids")
    return values.with_columns(ids)


def _mapping(values: pl.DataFrame, name: str) -> tuple[pl.Series, pl.Series]:
    starts = [*_OFFSETS.values(), _FEATURES]
    start = _OFFSETS[name]
    end = starts[starts.index(start) + 1]
    own = values.filter(pl.col("feature_id").is_between(start, end, closed="left"))
    return own.get_column("feature_id") - start, own.get_column("raw_value")


FRAPPE = PublicSet(
    name="frappe",
    folder="frappe",
    title="Frappe app usage with context, libFM form",
    rows=288_609,
    licence="research use; no redistribution without permission, no commercial use (L. Baltrunas)",
    homepage="https://github.com/hexiangnan/neural_factorization_machine",
    load=load_frappe,
    needs=tuple(
        (*names, *(f"libfm/{name}" for name in names))
        for names in (
            ("frappe.train.libfm", "frappe.train_positives.libfm"),
            ("frappe.validation.libfm",),
            ("frappe.test.libfm",),
        )
    ),
    files=tuple(RemoteFile(url=f"{_ORIGIN}/{name}", name=name, checksum=sum_) for name, sum_ in _CHECKSUMS.items()),
)
