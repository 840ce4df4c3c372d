"""Cost against size: fields, embedding size, vocabulary, rows; each with one and two threads."""

from collections.abc import Mapping
from typing import Any

from benchmarks.case import Case, Contender, Plot, Settings
from benchmarks.cases.update_step import steppers
from benchmarks.log import FRAPPE_SIZES, Log, random_log

BACKENDS = {"fieldwise": "auto", "plain op": "plain"}
ROWS_MADE = 1_000_000


def _over_threads(name: str, make: str, options: Mapping[str, Any]) -> list[Contender]:
    return [Contender(name=f"{name}, {n} thread{'s' * (n > 1)}", make=make, options=options, threads=n) for n in (2, 1)]


def _attention_case(axis: str, x: str, pooling: Mapping[str, Any], attention: Mapping[str, Any], about: str) -> Case:
    works = {"AFM pooling": ("pooling", pooling), "attention": ("attention", attention)}
    contenders = [
        contender
        for what, (op, points) in works.items()
        for backend, ops in BACKENDS.items()
        for contender in _over_threads(
            f"{what}, {backend}", "attention_ops:over_sizes", {"op": op, "points": points, "ops": ops}
        )
    ]
    return Case(title=f"Cost against {axis}", about=about, contenders=tuple(contenders), plot=Plot(x=x))


def sizes_fields(settings: Settings) -> Case:
    """Cost of AFM's pooling and AutoInt's attention against the number of fields, 4 to 64."""
    points, batch = settings.pick((4, 8, 16, 32, 64), (4, 16, 64), (2, 3)), settings.pick(1024, 1024, 8)
    return _attention_case(
        "fields",
        "fields",
        {str(f): {"batch": batch, "fields": f, "dim": 16, "attention": 16} for f in points},
        {str(f): {"batch": batch, "fields": f, "size": 64, "heads": 2} for f in points},
        f"Seconds of a forward and backward pass, B {batch}: AFM's pooling with D 16, A 16; AutoInt's attention over "
        "projected fields with A 64, 2 heads.",
    )


def sizes_dim(settings: Settings) -> Case:
    """Cost of AFM's pooling and AutoInt's attention against the embedding size, 8 to 256."""
    points, batch = settings.pick((8, 16, 32, 64, 128, 256), (8, 32, 128), (2, 4)), settings.pick(1024, 1024, 8)
    return _attention_case(
        "embedding size",
        "embedding size D",
        {str(d): {"batch": batch, "fields": 16, "dim": d, "attention": 16} for d in points},
        {str(d): {"batch": batch, "fields": 16, "size": d, "heads": 2} for d in points},
        f"Seconds of a forward and backward pass, B {batch}, F 16: AFM's pooling with A 16; AutoInt's attention over "
        "projected fields of size D, 2 heads.",
    )


def sizes_vocabulary(settings: Settings) -> Case:
    """Cost of one training step of an FM against the vocabulary, 10^3 to 10^7 rows."""
    points = settings.pick([10**k for k in range(3, 8)], [10**k for k in range(3, 7)], [100, 200])
    options = {
        "vocabularies": points,
        "batch": settings.pick(4096, 4096, 16),
        "fields": 10,
        "steps": settings.pick(6, 4, 3),
    }
    return Case(
        title="Cost of a training step against vocabulary",
        about=f"FM, D 16, batch {options['batch']} x 10 fields: median seconds of a step without the first.",
        contenders=steppers(options),
        plot=Plot(x="vocabulary (rows of the table)", y="seconds per step"),
    )


def sizes_rows(settings: Settings) -> Case:
    """Cost of an FM's epoch and of scoring against the rows, 10^5 to 10^7."""
    points = settings.pick([10**5, 10**6, 10**7], [10**5, 10**6], [200, 400])
    made = random_log(min(max(points), ROWS_MADE), FRAPPE_SIZES, valid_rows=500)
    folder = settings.folder / "log"
    _repeated(made, max(points)).save(folder)
    options = {"log": str(folder), "points": points, "batch": 4096, "model": {"name": "fm", "embedding_dim": 10}}
    return Case(
        title="Cost of an epoch and of scoring against rows",
        about=f"FM, D 10, ten fields of Frappe's sizes, batch 4096; above {ROWS_MADE:,} rows the log repeats itself.",
        contenders=(
            *_over_threads("an epoch", "fieldwise_rows:epochs", options),
            *_over_threads("scoring", "fieldwise_rows:scorings", options),
        ),
        plot=Plot(x="rows"),
    )


def _repeated(log: Log, rows: int) -> Log:
    times = -(-rows // len(log.y))
    return Log(
        log.sizes, log.ids.repeat(times, 0)[:rows], log.y.repeat(times)[:rows], log.valid_ids, log.valid_y, log.about
    )
