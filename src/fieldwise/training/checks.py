"""What a training run checks before its first step."""

from torch import nn

from fieldwise.errors import ConfigError
from fieldwise.evaluation.registry import watched
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

__all__ = ["check_auxiliary_loss", "check_batch_norm", "monitored"]


def monitored(settings: TrainingSettings, objective: Objective, *, grouped: bool) -> str:
    """The validation metric for early stopping.

    Errors:
        ConfigError: a metric that the task does not have, or group AUC without groups.
    """
    known = watched(objective.task)
    monitor = settings.monitor or known[0]
    if monitor not in known:
        raise ConfigError(f"monitor must be one of {', '.join(known)} for a {objective.task} label, found {monitor!r}")
    if monitor == "gauc" and not grouped:
        raise ConfigError("monitor = 'gauc' needs groups: set user or group in the schema")
    return monitor


def check_batch_norm(network: nn.Module, rows: int, batch_size: int) -> None:
    """Refuse batches of one row if the network normalizes over batches."""
    if min(rows, batch_size) == 1 and any(isinstance(module, nn.BatchNorm1d) for module in network.modules()):
        raise ConfigError(
            f"batch normalization needs batches of at least 2 rows, found batch_size {batch_size} for {rows} training "
            "rows: raise batch_size, or set the model's batch_norm = false"
        )


def check_auxiliary_loss(network: nn.Module, objective: Objective) -> None:
    """Refuse an auxiliary loss for binary labels if a label is a regression."""
    found = (getattr(module, "binary_settings", ()) for module in network.modules())
    names: tuple[str, ...] = next((settings for settings in found if settings), ())
    if names and "regression" in (o.task for o in (objective, *objective.more.values())):
        ask = " and ".join(f"model.{name} = 0" for name in names)
        raise ConfigError(f"the model has an auxiliary loss for binary labels, but a label is a regression: set {ask}")
