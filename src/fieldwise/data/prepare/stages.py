"""Preparing a table larger than memory: in a folder, in stages of which the finished ones survive a kill."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.data.encode.encoder import Encoder, encoded_pieces, unseen_shares
from fieldwise.data.encode.pieces import save_pieces
from fieldwise.data.encode.spread import encode_spread, fit_spread
from fieldwise.data.prepare.files import GROUP, ROWS, write_facts
from fieldwise.data.prepare.parts import NOTHING, Plan, complete, divide
from fieldwise.data.prepare.prepared import group_codes
from fieldwise.data.prepare.raw_rows import join_rows
from fieldwise.data.prepare.settings import PARTS
from fieldwise.data.read.mapped import MappedRows
from fieldwise.data.reports import NoReports, Reports
from fieldwise.distributed.engine import Engine
from fieldwise.storage.arrays import map_array, write_array
from fieldwise.storage.files import cannot_write, disk_is_full, sync_folder, write_atomically
from fieldwise.storage.locks import LOCK
from fieldwise.storage.scratch import Scratch

__all__ = ["Stages"]

DONE = "{}.done"  # facts of a finished stage, as JSON
ENCODER = "encoder.json"
TARGETS = "{}.targets.npy"
SCRATCH = "scratch"


@dataclass(frozen=True, kw_only=True)
class Stages:
    """One preparation in a folder, which holds at the end what `read_prepared` reads.

    The stages are: the rows of all parts, the encoder, and the encoded rows of each part. A stage that was begun and
    not finished begins again; the result is the same as of a preparation that is not interrupted.

    Args:
        folder: of this preparation alone; it exists.
        plan: what the preparation does.
        reports: told the phases and their rows.
        engine: machines that do what can be done file by file, and see the folder; None: this process.
    """

    folder: Path
    plan: Plan
    reports: Reports = field(default_factory=NoReports)
    engine: Engine | None = None

    @staticmethod
    def begun(folder: Path) -> bool:
        """Whether a stage of an earlier preparation in a folder is finished."""
        return any(folder.glob(DONE.format("*")))

    def run(self, source: Callable[[Path], MappedRows], piece: Callable[[pl.DataFrame], int]) -> None:
        """Do the stages that are not finished.

        Args:
            source: reads the raw table; the given folder is for scratch files.
            piece: how many rows of a table may be processed at once.

        Errors:
            SchemaError, DataError, ConfigError: see `prepare`; the disk is full.
        """
        shutil.rmtree(self.folder / SCRATCH, ignore_errors=True)  # of a killed process
        facts = self._facts("rows")
        if facts is None:
            with self._scratch() as place:
                facts = self._write_rows(source, piece, place)
            self._finish("rows", **facts)
        encoder = self._encoder(piece)
        unseen = {name: self._encoded(name, encoder, piece) for name in PARTS}
        del unseen["train"]
        self.reports.begin("finishing the preparation")
        write_facts(self.folder, facts["counts"], unseen)
        for path in self.folder.glob(TARGETS.format("*")):
            path.unlink()

    @staticmethod
    def link(folder: Path, to: Path) -> None:
        """Give the results of a folder another place, on the same disk and without copies; they stay where they are.

        File systems without links have them moved.
        """
        for path in sorted(folder.rglob("*")):
            new = to / path.relative_to(folder)
            if path.is_dir():
                new.mkdir()
            elif not path.match(DONE.format("*")) and path.name != LOCK:
                try:
                    os.link(path, new)
                except OSError as e:
                    if disk_is_full(e):
                        raise
                    path.rename(new)

    def _write_rows(
        self, source: Callable[[Path], MappedRows], piece: Callable[[pl.DataFrame], int], place: Path
    ) -> dict[str, Any]:
        table = source(place / "source")
        frame, files = table.frame, table.files
        self.reports.begin("labels, split and rows of each part", frame.height)
        (place / "work").mkdir(parents=True)
        scratch = Scratch(place / "work", piece=piece(frame))
        folders = {name: self.folder / ROWS.format(name) for name in PARTS}
        for folder in folders.values():
            shutil.rmtree(folder, ignore_errors=True)  # of a killed process
        changed = self.plan.add != NOTHING
        parts, dropped = divide(frame, self.plan, scratch, None if changed else folders, files, self.reports.add)
        self.reports.add(dropped)
        del frame, table
        shutil.rmtree(place / "source", ignore_errors=True)  # its place on disk is free again
        rows = complete(parts, self.plan.schema, seed=self.plan.seed, add=self.plan.add, scratch=scratch)
        for name, folder in folders.items():
            if changed:
                join_rows((rows.frames[name][at] for at in scratch.pieces(rows.frames[name].height)), scratch, folder)
            sync_folder(folder)
            with self._written(TARGETS.format(name)) as path, path.open("wb") as file:
                write_array(file, rows.targets[name])
        return {"counts": {"dropped_by_label": dropped, **rows.counts}}

    def _encoder(self, piece: Callable[[pl.DataFrame], int]) -> Encoder:
        path = self.folder / ENCODER
        if self._facts("encoder") is None:
            rows = self._rows("train")
            train = rows.frame
            self.reports.begin("vocabularies and scales", train.height)
            with self._scratch() as place:
                scratch = Scratch(place, piece=piece(train), told=self.reports.add)
                if self.engine is None:
                    encoder = Encoder.fit(train, self.plan.schema, scratch=scratch)
                else:
                    encoder = fit_spread(rows, self.plan.schema, self.engine, scratch, self.reports.add)
            write_atomically(path, encoder.to_json().encode())
            self._finish("encoder")
        return Encoder.from_json(path.read_text("utf-8"), "the preparation's encoder")

    def _encoded(self, name: str, encoder: Encoder, piece: Callable[[pl.DataFrame], int]) -> dict[str, float]:
        """Encode a part, and return the shares of its unknown values."""
        found = self._facts(name)
        if found is None:
            rows = self._rows(name)
            frame = rows.frame
            self.reports.begin(f"encoding {name} rows", frame.height)
            with self._scratch() as place:
                scratch = Scratch(place, piece=piece(frame), told=self.reports.add)
                y = map_array(self.folder / TARGETS.format(name))
                if self.engine is None:
                    pieces, to = encoded_pieces(encoder, frame, scratch), self.folder / name
                    table = save_pieces(to, encoder.layout, frame.height, pieces, y, scratch)
                    counts = {} if name == "train" else encoder.unseen_counts(table)
                else:
                    path = self.folder / ENCODER
                    table, counts = encode_spread(rows, path, self.engine, scratch, y, self.folder / name)
                if (groups := group_codes(frame, self.plan.schema, scratch)) is not None:
                    with self._written(GROUP.format(name)) as path, path.open("wb") as file:
                        write_array(file, groups)
                unseen = {} if name == "train" else unseen_shares(counts)
            self._finish(name, unseen=unseen)
            found = {"unseen": unseen}
        return dict(found["unseen"])

    def _rows(self, name: str) -> MappedRows:
        return MappedRows.of_folder(self.folder / ROWS.format(name))

    def _facts(self, stage: str) -> dict[str, Any] | None:
        """What a finished stage has stated; None if it is not finished."""
        try:
            facts: dict[str, Any] = json.loads((self.folder / DONE.format(stage)).read_text("utf-8"))
        except (OSError, ValueError):
            return None
        return facts

    def _finish(self, stage: str, **facts: Any) -> None:
        sync_folder(self.folder)
        write_atomically(self.folder / DONE.format(stage), json.dumps(facts).encode())

    @contextmanager
    def _scratch(self) -> Iterator[Path]:
        """A context with a folder for scratch files."""
        place = self.folder / SCRATCH
        try:
            place.mkdir()
            yield place
        except OSError as e:
            raise cannot_write(self.folder, e) from e
        finally:
            shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def _written(self, name: str) -> Iterator[Path]:
        """A context with a temporary path, which becomes the file of this name."""
        partial = self.folder / f".{name}"
        yield partial
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, self.folder / name)
