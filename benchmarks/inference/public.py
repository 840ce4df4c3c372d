"""scikit-learn's tables under other headers.

A header's answer is `kinds roles`: of kinds `c` (category), `n` (number), `b` (bag), `t` (time) and `o` (omitted), of
roles `u`, `i` and `x` (context), none: any; `U` and `I` are ids of a user and an item. `label` stands before cells
that must be positive, `/`, and those that must be negative.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import polars as pl
from sklearn import datasets

from benchmarks.inference.tables import Table, written
from benchmarks.inference.worlds import Column

__all__ = ["PUBLIC"]

KINDS = {"c": "category", "n": "number", "b": "bag", "t": "time", "o": "omitted"}
ROLES = {"u": "user", "i": "item", "x": "context", "U": "user", "I": "item"}
Made = tuple[str, str, pl.DataFrame, Mapping[str, str]]


def _tables(sets: Callable[[], Iterator[Made]]) -> Callable[..., Iterator[Table]]:
    def made(folder: Path, *, anonymous: bool = False, only: str = "") -> Iterator[Table]:
        for name, file, frame, answers in sets():
            if only not in name:
                continue
            columns = [
                _column(f"c{at}" if anonymous else header, frame.to_series(at - 1), answer)
                for at, (header, answer) in enumerate(answers.items(), 1)
            ]
            yield written(folder, name, file, columns)

    return made


def _column(header: str, cells: pl.Series, answer: str) -> Column:
    word, _, rest = answer.partition(" ")
    if word == "label":
        yes, _, no = rest.partition("/")
        positive, negative = (frozenset(_cell(cell) for cell in part.split(",") if cell) for part in (yes, no))
        return Column(name=header, cells=cells, kinds=frozenset(("label",)), positive=positive, negative=negative)
    kinds = frozenset(KINDS[letter] for letter in word)
    roles = frozenset(ROLES[letter] for letter in rest) or frozenset(ROLES.values())
    identity = ROLES[rest] if rest in ("U", "I") else ""
    return Column(name=header, cells=cells, kinds=kinds, roles=roles, identity=identity)


def _cell(text: str) -> object:
    return int(text) if text.removeprefix("-").isdigit() else text


def _scikit_learn() -> Iterator[Made]:
    for name, answers in (("breast_cancer", "label 1/0"), ("diabetes", "label")):
        bunch = getattr(datasets, f"load_{name}")()
        frame = pl.DataFrame(bunch.data, schema=list(map(str, bunch.feature_names)))
        few = {column: "cn" if frame[column].n_unique() < 10 else "n" for column in frame.columns}
        yield name, "csv ,", frame.with_columns(target=pl.Series(bunch.target)), few | {"target": answers}
    for name, positive in (("wine", 0), ("digits", 8)):
        bunch = getattr(datasets, f"load_{name}")()
        frame = pl.DataFrame(bunch.data, schema=[f"x{k}" for k in range(bunch.data.shape[1])])
        kinds = {
            c: "o" if frame[c].n_unique() == 1 else "cn" if frame[c].n_unique() < 10 else "n" for c in frame.columns
        }
        label = pl.Series((bunch.target == positive).astype(int))
        yield name, "csv ;", frame.with_columns(is_it=label), kinds | {"is_it": "label 1/0"}


PUBLIC = {"scikit-learn": _tables(_scikit_learn)}
