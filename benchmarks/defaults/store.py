"""Runs on disk: `TAG/TABLE/MODEL-SEED.json` with the figures, and an `.npz` file with labels and logits of test rows.

Baselines depend only on the rows: they are in `baselines`, by a digest of the encoded rows, for all tags.
"""

import hashlib
import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fieldwise.data.prepare.prepared import Prepared
from fieldwise.storage.files import write_atomically

__all__ = ["BASELINES", "Found", "Place", "data_digest"]

BASELINES = "baselines"


@dataclass(frozen=True)
class Found:
    """A run: its figures, and labels and logits of its test rows [N]."""

    about: dict[str, Any]
    y: np.ndarray
    logit: np.ndarray


@dataclass(frozen=True)
class Place:
    """Where a run's two files are."""

    store: Path
    tag: str
    table: str
    name: str

    @property
    def _stem(self) -> Path:
        return self.store / self.tag / self.table / self.name

    def get(self) -> Found | None:
        """The run, or None; a run without its second file was not completed."""
        about, rows = (self._stem.with_name(self.name + end) for end in (".json", ".npz"))
        if not (about.is_file() and rows.is_file()):
            return None
        with np.load(rows, allow_pickle=False) as arrays:
            return Found(json.loads(about.read_text("utf-8")), arrays["y"], arrays["logit"].astype(np.float64))

    def put(self, found: Found) -> None:
        """Write both files, the figures last."""
        rows = io.BytesIO()
        np.savez_compressed(rows, y=found.y.astype(np.float32), logit=found.logit.astype(np.float32))
        write_atomically(self._stem.with_name(self.name + ".npz"), rows.getvalue())
        text = json.dumps(found.about, indent=1, ensure_ascii=False) + "\n"
        write_atomically(self._stem.with_name(self.name + ".json"), text.encode())


def data_digest(prepared: Prepared) -> str:
    """A short digest of the encoded rows and labels of all parts."""
    found = hashlib.sha256()
    for part in (prepared.train, prepared.valid, prepared.test):
        table = part.table
        for array in (table.ids, table.values, table.bag_ids, table.bag_offsets, part.main):
            found.update(np.ascontiguousarray(array).tobytes())
    found.update(repr([(f.kind, f.offset, f.rows, f.pooling) for f in prepared.encoder.layout.fields]).encode())
    return found.hexdigest()[:12]
