"""Scoring one context with many candidates, as in a request."""

from benchmarks.case import Case, Contender, Settings, Target

MODELS = {"AFM": "afm", "AutoInt": "autoint"}
HOW = {"candidates": (True, "auto"), "full rows": (False, "auto"), "full rows, plain ops": (False, "plain")}


def candidates(settings: Settings) -> Case:
    """One context and 1,000 candidates with AFM and AutoInt, compared with scoring the 1,000 full rows."""
    count = settings.pick(1000, 1000, 20)
    return Case(
        title=f"A request: 1 context, {count:,} candidates, F 39 of which 30 context",
        about="AFM with D 16, A 16; AutoInt with D 16, 3 layers, 2 heads, A 64; float32, the minimum of the calls in "
        "0.3 s per turn. Full rows are a prepared batch.",
        contenders=tuple(
            Contender(
                name=f"{name}, {how}",
                make="candidates:scored",
                options={"candidates": count, "model": model, "shared": shared, "ops": ops},
            )
            for name, model in MODELS.items()
            for how, (shared, ops) in HOW.items()
        ),
        targets=tuple(
            Target.faster(f"{name}, candidates", f"{name}, full rows", 2, what=f"{name} against the full rows")
            for name in MODELS
        ),
    )
