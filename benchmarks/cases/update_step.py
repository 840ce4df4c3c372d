"""One training step over a large vocabulary."""

from typing import Any

from benchmarks.case import Case, Contender, Settings, Target
from benchmarks.cases.common import DENSE, LAZY


def steppers(options: dict[str, Any]) -> tuple[Contender, ...]:
    """fieldwise's default and lazy updates, PyTorch's dense and sparse Adam, on the same work."""
    own, plain = {**options, "with": "fieldwise"}, {**options, "with": "torch"}
    return (
        Contender(name="fieldwise, lazy Adam", make="updates:step", options={**own, "training": LAZY}),
        Contender(name="fieldwise, dense Adam", make="updates:step", options={**own, "training": DENSE}),
        Contender(name="torch Adam, fused", make="updates:step", options={**plain, "optimizer": "dense"}),
        Contender(name="torch SparseAdam", make="updates:step", options={**plain, "optimizer": "sparse"}),
    )


def update_step(settings: Settings) -> Case:
    """One update step with a vocabulary of 4,000,000 rows, compared with dense fused Adam and SparseAdam."""
    vocabulary = settings.pick(4_000_000, 1_000_000, 2_000)
    batch, fields = settings.pick(4096, 4096, 64), 39
    options = {"vocabularies": [vocabulary], "batch": batch, "fields": fields, "steps": settings.pick(8, 5, 3)}
    return Case(
        title=f"One step with {vocabulary:,} rows, D 16",
        about=f"FM, batch {batch} x {fields} fields, frequencies proportional to 1 / rank, float32: batch assembly, "
        "forward, backward, update. Each turn creates a new model and optimizer; its seconds are the median of its "
        "steps without the first, which creates the optimizer's state.",
        contenders=steppers(options),
        targets=(Target.faster("fieldwise, lazy Adam", "torch Adam, fused", 8),),
    )
