"""Predictions of slices of a table by an engine on any machines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.bundle.files import bundle_digest
from fieldwise.bundle.score_file import ScoreColumns, Scored, Scoring, scored_slice
from fieldwise.data.read.mapped import RowsWriter, map_rows
from fieldwise.distributed.engine import Engine, Task
from fieldwise.errors import BundleError
from fieldwise.storage.arrays import arrow_bytes
from fieldwise.storage.files import write_atomically
from fieldwise.storage.folders import scratch_folder

__all__ = ["SpreadScores"]


@dataclass(frozen=True, kw_only=True)
class SpreadScores:
    """Scores slices on an engine, whose processes load the bundle once each; see `score_file`.

    The slices lie in files beside the predictions, in a folder that all machines see: each from shortly before it is
    scored until its predictions are written.

    Args:
        engine: does the work.
        folder: of the bundle, which all machines see.
        imports: modules with your own models (`--import`).
    """

    engine: Engine
    folder: Path
    imports: Sequence[str] = ()

    def scored(self, slices: Iterable[pl.DataFrame], out: Path, columns: Mapping[str, Any]) -> Iterator[Scored]:
        """See `Spread.scored`."""
        folder = self.folder.absolute()
        about = {**columns, "bundle": str(folder), "digest": bundle_digest(folder), "imports": list(self.imports)}
        out.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(out.parent.absolute()) as place:
            place.chmod(0o755)  # other machines' processes may be another user's
            for answer in self.engine.stream(score_rows, _tasks(slices, place, folder, about)):
                found = pl.read_ipc(Path(answer["path"]).read_bytes())
                Path(answer["path"]).unlink()
                Path(answer["rows"]).unlink()
                yield found, {name: (n, of) for name, (n, of) in answer["unseen"].items()}


def _tasks(slices: Iterable[pl.DataFrame], place: Path, folder: Path, about: Mapping[str, Any]) -> Iterator[Task]:
    """A task per slice, whose rows are written when it is asked for."""
    writer, first = RowsWriter(place, gather=0), 0
    for part in slices:
        writer.add(part)
        path = writer.paths[-1]
        given = {**about, "rows": str(path), "first": first, "to": f"{path}.scores"}
        yield Task(given=given, reads=(path, folder), writes=place)
        first += part.height


def score_rows(given: Mapping[str, Any]) -> dict[str, Any]:
    """Score one file of rows; keys and predictions go to a file."""
    bundle = _bundle(given["bundle"], given["digest"], tuple(given["imports"]))
    how = Scoring(column=given["column"], logit=given["logit"], precision=given["precision"])
    made = ScoreColumns.of(bundle, how, given["keys"])
    found, unseen = scored_slice(bundle, map_rows([Path(given["rows"])]), made, given["keys"], given["first"])
    write_atomically(Path(given["to"]), arrow_bytes(found))
    return {"path": given["to"], "rows": given["rows"], "unseen": unseen}


@lru_cache(maxsize=1)
def _bundle(folder: str, digest: str, imports: tuple[str, ...]) -> Bundle:
    """The bundle, kept for the next piece of work in this process."""
    from fieldwise.models.own import import_model

    for module in imports:
        import_model(module)
    if bundle_digest(Path(folder)) != digest:
        raise BundleError(f"the bundle {folder} has changed while rows were scored: start again")
    return Bundle.load(folder)
