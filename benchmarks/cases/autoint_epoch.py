"""An epoch of AutoInt on Frappe."""

from benchmarks.case import Case, Contender, Settings, Target
from benchmarks.cases.common import BFLOAT16, saved_frappe


def autoint_epoch(settings: Settings) -> Case:
    """An epoch of AutoInt on Frappe: fieldwise in float32 and bfloat16, its plain ops, FuxiCTR."""
    log, folder = saved_frappe(settings)
    batch = settings.pick(4096, 4096, 100)
    sizes = {"embedding_dim": 10, "attention_dim": 64, "layers": 3, "heads": 2}
    few = {"log": folder, "batch": batch, "settings": sizes, "steps": settings.pick(10, 4, 2)}
    own = {
        "log": folder,
        "batch": batch,
        "model": {"name": "autoint", "variant": "fuxictr", **sizes},
        "steps": settings.pick(None, 10, 2),
    }
    return Case(
        title="An epoch of AutoInt, D 10, 3 layers, 2 heads, A 64",
        about=f"{log.about}; batch {batch}, Adam, no dropout or penalty, fieldwise's variant `fuxictr`. Seconds are "
        f"those of an epoch's training steps over {len(log.y):,} rows; timings of fewer rows are scaled to an epoch. "
        "FuxiCTR gets batches prepared in memory.",
        contenders=(
            Contender(name="fieldwise", make="fieldwise_training:epoch", options=own),
            Contender(
                name="fieldwise, bfloat16",
                make="fieldwise_training:epoch",
                options={**own, "training": BFLOAT16},
            ),
            Contender(
                name="fieldwise, plain ops",
                make="fieldwise_training:epoch",
                options={**own, "ops": "plain", "steps": few["steps"]},
            ),
            Contender(name="FuxiCTR 2.3.10", make="fuxictr:epoch", options={**few, "model": "autoint"}, peers=True),
        ),
        targets=(
            Target.faster("fieldwise", "FuxiCTR 2.3.10", 5),
            Target.faster("fieldwise, bfloat16", "FuxiCTR 2.3.10", 8),
        ),
    )
