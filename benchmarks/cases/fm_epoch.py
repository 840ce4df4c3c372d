"""Epochs of an FM on Frappe, compared with a compiled library."""

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
        about=f"{log.about}; each turn trains a new model for {epochs} epochs with its own seed. Seconds are per epoch "
        "(fieldwise: the median epoch's steps without evaluation; modern-fm: its `fit` divided by the epochs); "
        "AUC is that of validation rows at the end. Both train with Adagrad and the same batch size, learning rate, "
        "L2 and initialization; modern-fm's input is a prepared sparse matrix.",
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
                what="AUC divided by modern-fm's",
                top=("fieldwise", "auc"),
                bottom=("modern-fm 1.1", "auc"),
                goal=1.0,
                unit="exact",
            ),
        ),
    )
