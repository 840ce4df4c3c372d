"""MaxSim in serving: one user and stored items."""

from benchmarks.case import MACHINE, Case, Contender, Settings, Target


def maxsim(settings: Settings) -> Case:
    """MaxSim of 10,000 stored items x 32 x 32 against 3 x 32 user heads: float32, bfloat16, int8."""
    sizes = {"items": settings.pick(10_000, 10_000, 50), "heads": 32, "dim": 32, "levels": 3}
    ways = {
        "fieldwise float32": {"way": "float32"},
        "fieldwise bfloat16": {"way": "bfloat16"},
        "fieldwise int8": {"way": "int8"},
        "plain op": {"way": "op", "ops": "plain"},
        "one matrix product": {"way": "product"},
        "one bfloat16 product": {"way": "bfloat16 product"},
    }
    return Case(
        title=f"MaxSim, {sizes['items']:,} stored items x 32 x 32 against 3 x 32 user heads",
        about="Seconds are the minimum of the calls in 0.3 s per turn. Operations are those of the products only, 2 "
        "for each entry of an item's head and each user head.",
        measures=("seconds", "GFLOP/s"),
        contenders=tuple(
            Contender(name=name, make="stored_items:scored", options={**sizes, **way}) for name, way in ways.items()
        ),
        targets=(
            Target(
                what="float32, share of the matrix rate",
                top=("fieldwise float32", "GFLOP/s"),
                bottom=(MACHINE, "GFLOP/s float32"),
                goal=0.75,
                unit="share",
            ),
            Target(
                what="int8, share of the float32 matrix rate (twice float32's target)",
                top=("fieldwise int8", "GFLOP/s"),
                bottom=(MACHINE, "GFLOP/s float32"),
                goal=1.5,
                unit="share",
            ),
            Target.faster("fieldwise int8", "fieldwise float32", 2, what="int8 against fieldwise's float32"),
        ),
    )
