"""AFM's pair attention pooling alone."""

from benchmarks.case import MACHINE, Case, Contender, Settings, Target


def afm_pooling(settings: Settings) -> Case:
    """AFM's pooling alone: seconds forward and backward, peak memory, share of the matrix rate."""
    batch = settings.pick(4096, 4096, 32)
    sizes = {"batch": batch, "fields": 39, "dim": 16, "attention": 16}
    return Case(
        title=f"AFM's pooling of all pairs, B {batch}, F 39, D 16, A 16",
        about="float32, no dropout. Seconds are those of a forward and backward pass to all inputs, the minimum of the "
        "calls in 0.3 s per turn. Operations are those of the formula, D + 2 D A + 3 A + 2 D per pair. Peak memory is "
        "the increase of resident memory of a fresh process with warm code during the first forward and backward pass "
        "at this size, including gradients.",
        measures=("seconds", "forward seconds", "forward GFLOP/s", "peak MB"),
        contenders=(
            Contender(name="fieldwise", make="attention_ops:pooling", options={**sizes, "ops": "auto"}),
            Contender(name="plain op", make="attention_ops:pooling", options={**sizes, "ops": "plain"}),
        ),
        targets=(
            Target.faster("fieldwise", "plain op", 10, what="forward and backward against the plain op"),
            Target.faster("fieldwise", "plain op", 10, measure="peak MB", what="peak memory against the plain op"),
            Target(
                what="forward, share of the matrix rate",
                top=("fieldwise", "forward GFLOP/s"),
                bottom=(MACHINE, "GFLOP/s float32"),
                goal=0.5,
                unit="share",
            ),
        ),
    )
