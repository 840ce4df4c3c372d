"""Epochs of an FM on Frappe against a compiled library."""

from benchmarks.case import Case, Contender, Settings, Target
from benchmarks.cases.common import saved_frappe

EPOCHS = 5
BATCH, RATE, L2 = 1024, 0.3, 1e-5
OURS = {"optimizer": "adagrad", "batch_size": BATCH, "learning_rate": RATE, "l2": {"*": L2}}
MODERN_FM = {
    "n_factors": 10,
    "optimizer": "adagrad",
    "batch_size": BATCH,
    "learning_rate": RATE,
    "l2_linear": L2,
    "l2_factors": L2,
}


def fm_epoch(settings: Settings) -> Case:
    """An epoch of FM on Frappe, and the AUC after five: fieldwise and modern-fm, each with its own settings."""
    log, folder = saved_frappe(settings)
    epochs = settings.pick(EPOCHS, EPOCHS, 1)
    ours = {"log": folder, "epochs": epochs, "model": {"name": "fm", "embedding_dim": 10, "embedding_std": 0.01}}
    return Case(
        title="An epoch of FM, D 10",
        about=f"{log.about}; a turn trains anew for {epochs} epochs by a seed of its own. Its seconds are an epoch's "
        "(fieldwise: the median epoch's steps, evaluation left out; modern-fm: its `fit` by the number of epochs), and "
        "the AUC is that of the validation rows at its end. Both train by Adagrad with the same batch, rate, L2 and "
        "start; modern-fm's input is a sparse matrix that lies ready.",
        measures=("seconds", "auc"),
        contenders=(
            Contender(name="fieldwise", make="fieldwise_training:trained", options={**ours, "training": OURS}),
            Contender(
                name="fieldwise, one thread",
                make="fieldwise_training:trained",
                options={**ours, "training": OURS, "threads": 1},
            ),
            Contender(
                name="modern-fm 1.1",
                make="modern_fm:epoch",
                options={"log": folder, "epochs": epochs, "settings": MODERN_FM},
                peers=True,
            ),
        ),
        targets=(
            Target.faster("fieldwise", "modern-fm 1.1", 1),
            Target.faster(
                "fieldwise, one thread", "modern-fm 1.1", 1, what="fieldwise on one thread against modern-fm"
            ),
            Target(
                what="AUC over modern-fm's",
                top=("fieldwise", "auc"),
                bottom=("modern-fm 1.1", "auc"),
                goal=1.0,
                unit="exact",
            ),
        ),
    )
