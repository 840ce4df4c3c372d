"""Tables as people log them (`tables.txt`): headers, forms of columns (`worlds`), sizes and kinds of file.

A table is a line `name: trade, language, rows x users x items, rate, file` and a line of
`header = side.form` or `header = time how` or `header = label how`. `~.1` empties a tenth of a
column's cells, `!2` breaks two of them. `as ID` marks a column that may be taken as the id of its
side. `+label` is a second label, which is known too late for a field. `judged` is what
`infer_schema` makes of a table, against what its columns mean.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.inference.worlds import OMITTED, Column, World, labels, made, times
from fieldwise.data.infer.schema import Inference, infer_schema
from fieldwise.errors import FieldwiseError
from fieldwise.schema import Label

__all__ = ["Table", "judged", "planted"]

ROLES = {"user", "item", "context"}
IDS = {"int", "seq", "hex", "uuid", "prefixed", "handle", "email", "isbn", "name"}

TABLES = Path(__file__).with_name("tables.txt")
KINDS = {"categorical": "category", "numeric": "number", "bag": "bag", "sequence": "bag"}


@dataclass(frozen=True, kw_only=True)
class Table:
    """A file, and by header what each column means."""

    path: Path
    columns: Mapping[str, Column]

    def named(self, kind: str) -> list[str]:
        """Columns that may be of this kind."""
        return [name for name, column in self.columns.items() if kind in column.kinds]

    def ids(self, side: str) -> list[str]:
        """Columns that may be taken as ids of this side."""
        return [name for name, column in self.columns.items() if column.identity == side]


def planted(folder: Path, *, anonymous: bool = False, only: str = "") -> Iterator[Table]:
    """The tables, each written to a folder as it is asked for."""
    lines = TABLES.read_text().splitlines()
    for head, body in zip(lines[::2], lines[1::2], strict=True):
        if only in head:
            yield _written(head, body, folder, anonymous)


def _written(head: str, body: str, folder: Path, anonymous: bool) -> Table:
    name, _, facts = head.partition(": ")
    _, language, size, rate, file = facts.split(", ")
    rows, users, items = map(int, size.split("x"))
    seed = zlib.crc32(name.encode())
    w = World(seed=seed, rows=rows, users=users, items=items, language=language, rate=float(rate))
    columns = []
    for at, entry in enumerate(body.split("; "), 1):
        header, _, words = entry.partition(" = ")
        header = f"c{at}" if anonymous else header
        columns.append(_column(w, header, words.split()))
    if seed % 3 == 0 and users:  # a log that is kept by user
        order = np.argsort(w.index["user"], kind="stable")
        columns = [replace(column, cells=column.cells[order]) for column in columns]
    suffix, _, mark = file.partition(" ")
    path = folder / f"{name}.{suffix}"
    frame = pl.DataFrame({column.name: column.cells for column in columns})
    if suffix == "parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path, separator="\t" if mark == "tab" else mark)
    return Table(path=path, columns={column.name: column for column in columns})


def _column(w: World, header: str, words: list[str]) -> Column:
    form, *given = words
    if form == "time":
        week = given[0] == "week"
        return Column(
            name=header,
            cells=times(w, given[0]),
            kinds=frozenset(() if week else ("time",)),
            check=week,
        )
    if form == "label":
        cells, yes, no = labels(w, *given)
        return Column(
            name=header,
            cells=cells,
            kinds=frozenset(("label",)),
            positive=frozenset(yes),
            negative=frozenset(no),
        )
    if form == "+label":  # of the positives alone
        later = pl.Series((w.y & (w.rng.random(w.rows) < 0.3)).astype(int))
        kinds = frozenset(("label", "omitted"))
        return Column(
            name=header,
            cells=later,
            kinds=kinds,
            positive=frozenset((1,)),
            negative=frozenset((0,)),
        )
    side, _, how = form.partition(".")
    gaps = next((float(word[1:]) for word in given if word[0] == "~"), 0.0)
    broken = next((int(word[1:]) for word in given if word[0] == "!"), 0)
    named = given[-2:] == ["as", "ID"]
    given = [word for word in given[: -2 if named else None] if word[0] not in "~!"]
    cells, kinds = made(w, side, how, given)
    if how in IDS and side == "row":
        kinds = OMITTED  # another value in every row
    if gaps or broken:
        cells = _damaged(w, cells, gaps, broken)
    roles = (
        {side}
        if w.given[side]
        else {"context"}
        if side == "row" and any(w.given.values())
        else ROLES
    )
    return Column(
        name=header,
        cells=cells,
        kinds=frozenset({"category"} if named else kinds if not broken else ()),
        roles=frozenset(ROLES if how == "session" else roles),
        identity=side if w.given[side] and (how in IDS or named) else "",
        check=broken > 0,
    )


def _damaged(w: World, cells: pl.Series, gaps: float, broken: int) -> pl.Series:
    """Cells of which a share is empty, or a few are no numbers."""
    if gaps:
        return cells.set(pl.Series(w.rng.random(w.rows) < gaps), None)
    at = w.rng.choice(w.rows, broken, replace=False)
    return cells.cast(pl.String).scatter(at, ["#REF!", "approx. 300", "??"][:broken])


def judged(table: Table) -> dict[str, Any]:
    """How a table is read without options, or where it is not, with its label given; ids in doubt are confirmed.

    `unread` is why it was not read without options, `wrong` says by column what is wrong, and `ids`
    by side whether the right column was found, for those sides that have one.
    """
    unread = ""
    guess = None
    for label in (None, *table.named("label")):
        try:
            guess = infer_schema(table.path, label=label)
            if guess.possible_ids:
                guess = infer_schema(table.path, label=label, **guess.possible_ids)
            break
        except FieldwiseError as e:
            unread = unread or str(e)
    sides = {side: table.ids(side) for side in ("user", "item")}
    asked = {
        side: name
        for side, names in sides.items()
        for name in names
        if f"{side} may be {name!r}" in unread
    }
    if guess is None and len(asked) == 2:  # of a log of events
        guess = infer_schema(table.path, **asked)
        unread = ""
    return {
        "name": table.path.stem,
        "columns": len(table.columns),
        "unread": unread,
        "wrong": dict.fromkeys(table.columns, "not read")
        if guess is None
        else dict(_wrong(table, guess)),
        "ids": {
            s: guess is not None and getattr(guess.schema, s) in right
            for s, right in sides.items()
            if right
        },
    }


def _wrong(table: Table, guess: Inference) -> Iterator[tuple[str, str]]:
    """Columns that are not read as they are meant, each with what it was read as."""
    schema = guess.schema
    fields = {f.column: f for f in schema.fields}
    for name, column in table.columns.items():
        kind = KINDS[fields[name].kind] if name in fields else "omitted"
        kind = "time" if name == schema.time else kind
        kind = "label" if name == schema.label.column and not guess.only_positives else kind
        if column.check:
            if name not in guess.doubts:
                yield name, f"{kind} without CHECK"
        elif kind not in column.kinds:
            yield name, f"{kind} instead of {' or '.join(sorted(column.kinds))}"
        elif kind == "label" and (fault := _rule_fault(schema.label, column)):
            yield name, fault
        elif name in fields and fields[name].role not in column.roles:
            yield name, f"role {fields[name].role} instead of {' or '.join(sorted(column.roles))}"


def _rule_fault(label: Label, column: Column) -> str:
    """What is wrong with a label's rule: cells that it must take for positive or negative, and does not."""
    if not column.positive:
        return "" if label.task == "regression" else "binary instead of regression"
    if label.task == "regression":
        return "regression instead of binary"
    for cells, positive in ((column.positive, True), (column.negative, False)):
        for cell in cells:
            if cell in label.drop_values or _is_positive(label, cell) != positive:
                return f"rule {label.rule}: {cell} is not {'positive' if positive else 'negative'}"
    return ""


def _is_positive(label: Label, cell: object) -> bool:
    if label.positive_above is not None:
        return isinstance(cell, (int, float)) and cell > label.positive_above
    return cell in (label.positive_values or (1,))
