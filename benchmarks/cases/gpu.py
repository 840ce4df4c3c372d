"""The cases of a GPU: `python -m benchmarks run gpu`. They were written without one and never measured so far."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.case import Case, Contender, Settings, Target
from benchmarks.cases.afm_epoch import afm_epoch
from benchmarks.cases.autoint_epoch import autoint_epoch
from benchmarks.cases.common import BFLOAT16, LAZY
from benchmarks.cases.inttower_epoch import inttower_epoch

__all__ = ["GPU_CASES"]

GPU = "cuda"
FUXICTR = "FuxiCTR 2.3.10"
PLAIN = {"afm": "plain PyTorch loop", "inttower": "plain PyTorch"}


def gpu_afm_epoch(settings: Settings) -> Case:
    """An epoch of AFM on Frappe on one GPU: fieldwise, its plain ops, FuxiCTR, a plain PyTorch loop."""
    plain = PLAIN["afm"]
    return on_gpu(
        afm_epoch(settings), settings, {"fieldwise", "fieldwise, plain ops", FUXICTR, plain}, (FUXICTR, plain)
    )


def gpu_autoint_epoch(settings: Settings) -> Case:
    """An epoch of AutoInt on Frappe on one GPU: fieldwise in float32, bfloat16 and compiled, its plain ops, FuxiCTR."""
    return on_gpu(
        autoint_epoch(settings),
        settings,
        {"fieldwise", "fieldwise, bfloat16", "fieldwise, plain ops", FUXICTR},
        (FUXICTR, "fieldwise, plain ops"),
    )


def gpu_inttower_epoch(settings: Settings) -> Case:
    """An epoch of IntTower on MovieLens-1M on one GPU, compared with the same model in plain PyTorch."""
    plain = PLAIN["inttower"]
    return on_gpu(inttower_epoch(settings), settings, {"fieldwise", "fieldwise, plain ops", plain}, (plain,))


def gpu_maxsim(settings: Settings) -> Case:
    """MaxSim of 1,000,000 stored items x 32 x 32 against 3 x 32 user heads on one GPU, with memory."""
    sizes = {"items": settings.rows_of(1_000_000, 100_000, 50), "heads": 32, "dim": 32, "levels": 3, "device": GPU}
    ways = {
        "fieldwise float32": {"way": "float32"},
        "fieldwise bfloat16": {"way": "bfloat16"},
        "fieldwise, plain ops": {"way": "float32", "ops": "plain"},
        "one matrix product": {"way": "product"},
    }
    return Case(
        title=f"MaxSim on a GPU, {sizes['items']:,} stored items x 32 x 32 against 3 x 32 user heads",
        about="Seconds are the minimum of the calls in 0.3 s per turn, each until the GPU is done. Peak memory is that "
        "of tensors, items included.",
        measures=("seconds", "GFLOP/s", "peak MB"),
        contenders=tuple(
            Contender(name=name, make="stored_items:scored", options={**sizes, **way}) for name, way in ways.items()
        ),
        targets=(Target.faster("fieldwise float32", "one matrix product", 1),),
    )


def on_gpu(case: Case, settings: Settings, wanted: set[str], against: tuple[str, ...]) -> Case:
    """A case of the CPU with whole epochs on a GPU, some of its contenders and targets of its own."""
    contenders = [
        dataclasses.replace(one, options=_options(one, settings)) for one in case.contenders if one.name in wanted
    ]
    own = next(one for one in contenders if one.name == "fieldwise")
    more = {"fieldwise, bfloat16": BFLOAT16, "fieldwise, compiled": {"compile": True}, "fieldwise, lazy Adam": LAZY}
    known = {one.name for one in contenders}
    contenders += [
        dataclasses.replace(own, name=name, options={**own.options, "training": {"device": GPU, **training}})
        for name, training in more.items()
        if name not in known
    ]
    return dataclasses.replace(
        case,
        title=f"{case.title}, on a GPU",
        about=f"{case.about} All on one GPU; seconds end when it is done. Peak memory is that of tensors there.",
        contenders=tuple(contenders),
        targets=tuple(Target.faster("fieldwise", other, 1) for other in against),
        measures=("seconds", "peak MB"),
    )


def _options(contender: Contender, settings: Settings) -> Mapping[str, Any]:
    options = {**contender.options, "steps": settings.pick(None, 30, 2), "device": GPU}
    if contender.make.startswith(("fieldwise_training", "inttower")):
        options["training"] = {**contender.options.get("training", {}), "device": GPU}
    return options


GPU_CASES: dict[str, Callable[[Settings], Case]] = {
    "gpu-afm-epoch": gpu_afm_epoch,
    "gpu-autoint-epoch": gpu_autoint_epoch,
    "gpu-inttower-epoch": gpu_inttower_epoch,
    "gpu-maxsim": gpu_maxsim,
}
