"""An epoch of AFM on Frappe."""

from benchmarks.case import Case, Contender, Settings, Target
from benchmarks.cases.common import LAZY, saved_frappe


def afm_epoch(settings: Settings) -> Case:
    """An epoch of AFM on Frappe: fieldwise, its plain ops, FuxiCTR, DeepCTR-Torch, a plain PyTorch loop."""
    log, folder = saved_frappe(settings)
    batch = settings.pick(4096, 4096, 100)
    sizes = {"embedding_dim": 10, "attention_dim": 128}
    shared = {"log": folder, "batch": batch, "settings": sizes}
    few = {**shared, "steps": settings.pick(10, 4, 2)}
    own = {"log": folder, "batch": batch, "model": {"name": "afm", **sizes}}
    rows = len(log.y)
    return Case(
        title="An epoch of AFM, D 10, A 128",
        about=f"{log.about}; batch {batch}, float32, Adam, no dropout or penalty. Seconds are those of an epoch's "
        f"training steps over {rows:,} rows; timings of fewer rows are scaled to an epoch. Those of fieldwise include "
        "shuffling and batch assembly; FuxiCTR and DeepCTR-Torch get batches prepared in memory, unless their own "
        "loader is named. FuxiCTR's step clips gradient norms, as its released code always does.",
        contenders=(
            Contender(name="fieldwise", make="fieldwise_training:epoch", options=own),
            Contender(name="fieldwise, lazy Adam", make="fieldwise_training:epoch", options={**own, "training": LAZY}),
            Contender(
                name="fieldwise, plain ops",
                make="fieldwise_training:epoch",
                options={**own, "ops": "plain", "steps": few["steps"]},
            ),
            Contender(name="FuxiCTR 2.3.10", make="fuxictr:epoch", options={**few, "model": "afm"}, peers=True),
            Contender(name="DeepCTR-Torch 0.3.0", make="deepctr_torch:epoch", options=few, peers=True),
            Contender(
                name="DeepCTR-Torch, its loader",
                make="deepctr_torch:epoch",
                options={**few, "loader": True},
                peers=True,
            ),
            Contender(name="plain PyTorch loop", make="plain_afm:epoch", options=few),
        ),
        targets=(
            Target.faster("fieldwise", "FuxiCTR 2.3.10", 20),
            Target.faster("fieldwise", "DeepCTR-Torch 0.3.0", 20),
            Target.faster("fieldwise", "plain PyTorch loop", 10),
        ),
    )
