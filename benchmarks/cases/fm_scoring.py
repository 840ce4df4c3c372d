"""Scoring with an FM, compared with a compiled library."""

from benchmarks.case import Case, Contender, Settings, Target
from benchmarks.cases.common import saved_frappe
from benchmarks.cases.fm_epoch import MODERN_FM


def fm_scoring(settings: Settings) -> Case:
    """Scoring Frappe's training rows with an FM: fieldwise and modern-fm."""
    log, folder = saved_frappe(settings)
    ours = {"log": folder, "model": {"name": "fm", "embedding_dim": 10}}
    return Case(
        title="Scoring with FM, D 10",
        about=f"{log.about}, all scored in a turn; encoded rows and modern-fm's sparse matrix are prepared in memory.",
        measures=("seconds", "rows per second"),
        contenders=(
            Contender(name="fieldwise", make="fieldwise_scoring:encoded", options=ours),
            Contender(
                name="modern-fm 1.1",
                make="modern_fm:scoring",
                options={"log": folder, "settings": MODERN_FM},
                peers=True,
            ),
        ),
        targets=(Target.faster("fieldwise", "modern-fm 1.1", 1),),
    )
