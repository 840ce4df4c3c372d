"""Settings of training, and the optimizers that they choose among. PyTorch is not loaded for them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from fieldwise.config import LOCAL, Settings, check_numbers
from fieldwise.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class OptimizerKind:
    """An optimizer that recipes may name: PyTorch's for whole parameters, and a `RowRule` for the rows of a batch."""

    numbers: int  # that PyTorch's keeps for each number of a parameter
    eps: float  # added to a root in a denominator; as PyTorch's has it
    # whether a table updated by rows has the numbers of one updated as a whole: `auto` may take it
    same: bool = True
    rows_only: bool = False  # whether embedding tables are always updated by rows


OPTIMIZERS: Mapping[str, OptimizerKind] = {
    "adam": OptimizerKind(numbers=2, eps=1e-8, same=False),
    "adagrad": OptimizerKind(numbers=1, eps=1e-10),
    "rowwise_adagrad": OptimizerKind(numbers=1, eps=1e-10, rows_only=True),
    "sgd": OptimizerKind(numbers=0, eps=0.0),
}
"""All of them by name; the first is the one where nothing is said."""

LBFGS = "lbfgs"
"""Solves a regression as a whole, without steps over batches (`fieldwise.training.fit`)."""

if TYPE_CHECKING:
    OptimizerName = str
else:
    # what recipes are checked against, and the settings' page shows
    OptimizerName = Literal[(*OPTIMIZERS, LBFGS)]
# whether it exists is known once PyTorch is loaded
DEVICE = re.compile(r"[a-z][a-z0-9_]*(:[0-9]+)?")


def monitors() -> tuple[str, ...]:
    """Names of the metrics that early stopping may use."""
    from fieldwise.evaluation.metrics import METRICS  # here: it loads NumPy and SciPy

    return tuple(metric.name for metric in METRICS.values() if metric.watched)


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(Settings):
    """Settings of one training run.

    Args:
        loss: what a step minimises. `logloss`: each row by itself; of a regression label the squared
            error. Losses that rank compare a row with the others of its group (the schema's
            `group`, else `user`), and batches hold whole groups: `pairwise` (RankNet, BPR),
            `listwise` (softmax), whose scores are no probabilities, and `combined` (logloss and
            listwise), which keeps probabilities. `in_batch_softmax` trains two towers to find a
            positive's item among those of the batch and drawn ones. See `docs/losses.md`.
        optimizer: `adam` (Kingma & Ba, 2015), `adagrad` (Duchi et al., 2011), `rowwise_adagrad`
            (Mudigere et al., 2022: Adagrad with one number per row of an embedding table, other
            parameters as `adagrad`) or `sgd`. `lbfgs` solves LR exactly, in memory, and reads no
            other setting but `l2`, `monitor` and `device`: without `l2`, its priors are weighed on
            the validation rows (`docs/defaults.md`).
        learning_rate: initial learning rate.
        embedding_update: whether a step updates all rows of an embedding table (`dense`) or only
            those of its batch (`lazy`). Lazy updates differ for `adam`, and need no L2 over all
            rows; see `docs/training.md`. `auto` is lazy for large tables if the result is the same.
        adagrad_accumulator: initial sum of squared gradients of `adagrad`.
        batch_size: rows per step; a last batch of one row is merged into the one before.
        epochs: maximum number of passes over the training rows.
        shuffle_rows: training rows that are shuffled at once, of which two times as many are in
            memory: an epoch goes window by window, in an order of windows and rows that the seed
            decides (`docs/training.md`). By default all rows of an encoded table of at most 1 GiB,
            else as many as take 256 MiB.
        l2: strength by parameter name or pattern (`attention.W`, `embedding.*`): adds strength / 2
            * sum of squares to the mean loss of every step. A pattern that matches no parameter is
              an error.
        l2_rows: for embedding tables, sum over `all` rows, or over the distinct rows `touched` by
            the batch. Lazy updates spread the L2 of `all` rows over the occurrences of each
            (`docs/training.md`).
        precision: precision of the forward pass and its gradients: `bfloat16` multiplies matrices
            in 16 bits (weights, optimizer and loss stay float32), which is faster on processors
            with bfloat16 instructions.
        compile: whether to compile the network with `torch.compile` for training, which needs a C++
            compiler and up to a minute at the start.
        clip_norm: maximum norm of the gradients over all parameters.
        average: decay of an exponential moving average of the weights, such as 0.99: the average is
            evaluated and kept, while training continues from the last step's weights. No averaging
            if omitted or 0.
        start_at_base_rate: whether the output bias is initialised to the logit of the training
            rows' positive rate, or for a regression label to their mean
            (`fieldwise.training.initialise`), instead of 0.
        unknown_share: with a strength s above 0, a value that n training rows have is replaced in
            training by its field's unknown value with probability s / (s + n), so that the unknown
            row learns what rare values have in common (`fieldwise.training.oov_dropout`).
        start_from_lr: whether the model's first-order weights and bias start from LR as `lbfgs`
            solves it, without `l2`: for FM, AFM and others that have both.
        mean_with_lr: whether the result is the mean of the trained network's score and that of LR
            as `lbfgs` solves it, without `l2`, if the validation rows say so
            (`docs/models/README.md`). Not for two towers.
        l2_of_lr: L2 strength of the weights of that LR (`start_from_lr`, `mean_with_lr`), which is
            then trained by Adam's steps before the network, with the run's batches, evaluations,
            `epochs` and `patience`: for tables that are too large to solve it. Solved if omitted.
        monitor: validation metric of the main label for early stopping; by default `auc` for binary
            and `rmse` for regression labels, with `pairwise` and `listwise` `gauc` and `ndcg`.
            `loss` uses all labels: the weighted sum of their validation losses.
        evaluations_per_epoch: number of evaluations on the validation rows per epoch, evenly
            spaced.
        patience: training stops after this many evaluations in a row without a better `monitor`.
        plateau_factor: factor for the learning rate after `plateau_patience` evaluations without a
            better `monitor`, and again after as many more; 1 keeps the rate.
        plateau_patience: see `plateau_factor`.
        refit: whether the network is trained a second time, from the start, on training and
            validation rows together: for as many epochs as the first training took to its best
            evaluation, with the same learning rates. The validation metrics are the first
            training's.
        device: where networks are trained and evaluated: `cpu`, `cuda`, `cuda:N` (a GPU by its
            number), `mps`, or `auto`: a GPU if PyTorch can use one, else the CPU. Bundles, runs and
            recipes that are saved do not keep it. See `docs/how-to/devices.md`.
        checkpoint_minutes: minutes between two checkpoints of a run that keeps them
            (`fieldwise train`, or `Recommender(checkpoint=...)`); 0 writes none. See
            `docs/resume.md`.
    """

    loss: Literal["logloss", "pairwise", "listwise", "combined", "in_batch_softmax"] = "logloss"
    optimizer: OptimizerName = "adam"
    learning_rate: float = 1e-3
    embedding_update: Literal["auto", "dense", "lazy"] = "auto"
    adagrad_accumulator: float = 0.0
    batch_size: int = 1024
    epochs: int = 30
    shuffle_rows: int | None = None
    l2: dict[str, float] = field(default_factory=dict)
    l2_rows: Literal["all", "touched"] = "all"
    precision: Literal["float32", "bfloat16"] = "float32"
    compile: bool = False
    clip_norm: float | None = None
    average: float | None = None
    start_at_base_rate: bool = False
    unknown_share: float = 0.0
    start_from_lr: bool = False
    mean_with_lr: bool = False
    l2_of_lr: float | None = None
    monitor: str | None = field(default=None, metadata={"choices": monitors})
    evaluations_per_epoch: int = 1
    patience: int = 3
    plateau_factor: float = 0.1
    plateau_patience: int = 1
    refit: bool = False
    device: str = field(default="cpu", metadata=LOCAL)
    checkpoint_minutes: float = 2.0

    def check(self) -> None:
        """Check each setting, and those that exclude each other."""
        super().check()
        if not DEVICE.fullmatch(self.device):
            raise ConfigError(
                f"device must be auto, cpu, cuda, cuda:N or mps, found {self.device!r}"
            )
        check_numbers(
            self,
            "be at least 1",
            lambda count: count >= 1,
            "batch_size",
            "epochs",
            "shuffle_rows",
            "evaluations_per_epoch",
            "patience",
            "plateau_patience",
        )
        check_numbers(self, "be positive", lambda x: x > 0, "learning_rate", "clip_norm")
        check_numbers(self, "be at least 0 and below 1", lambda x: 0 <= x < 1, "average")
        check_numbers(self, "be in (0, 1]", lambda x: 0 < x <= 1, "plateau_factor")
        check_numbers(
            self,
            "not be negative",
            lambda x: x >= 0,
            "adagrad_accumulator",
            "unknown_share",
            "l2_of_lr",
            "checkpoint_minutes",
        )
        for name, strength in self.l2.items():
            if not strength >= 0:
                raise ConfigError(f"l2 strength of {name!r} must not be negative, found {strength}")
        self._check_loss()
        rows_only = self.optimizer != LBFGS and OPTIMIZERS[self.optimizer].rows_only
        if rows_only and self.embedding_update == "dense":
            raise ConfigError(
                f"optimizer = {self.optimizer!r} updates only the rows of a batch, found embedding_update = 'dense': "
                "set 'auto', or optimizer = 'adagrad'"
            )

    def _check_loss(self) -> None:
        """Check that what is solved by logloss goes with the loss."""
        if self.loss != "logloss" and self.optimizer == LBFGS:
            raise ConfigError(
                f"optimizer = 'lbfgs' solves LR by logloss, found loss = {self.loss!r}: set optimizer = 'adam', or "
                "loss = 'logloss'"
            )
        if self.mean_with_lr and not self.gives_probabilities:
            raise ConfigError(
                f"mean_with_lr takes the mean of two logits, but loss = {self.loss!r} gives scores that are none: "
                "set mean_with_lr = false, or loss = 'combined'"
            )

    @property
    def ranks(self) -> bool:
        """Whether the loss compares rows of a group."""
        return self.loss in ("pairwise", "listwise", "combined")

    @property
    def gives_probabilities(self) -> bool:
        """Whether the loss makes scores of a binary label logits of its probability."""
        return self.loss in ("logloss", "combined")

    @property
    def solves_lr(self) -> bool:
        """Whether LR is solved, or trained by steps, before training."""
        return self.start_from_lr or self.mean_with_lr
