"""One step of training: forward pass in the chosen precision, gradients, the update of all weights and of their mean.

And what goes before: the network on its device, its output bias at the training rows' base rate or
mean, the same weights in all processes that train together.
Letters: B batch, T labels.
"""

import hashlib
import math
import warnings
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from fieldwise.data.table import EncodedTable, mean_target
from fieldwise.distributed.process_group import ProcessGroup, current_group, span_of_rows
from fieldwise.errors import ConfigError
from fieldwise.layers.batch_norm import normalize_over_processes
from fieldwise.layout import Batch, Layout
from fieldwise.ops.devices import device_of, in_precision, open_device, slow_bfloat16
from fieldwise.ops.dropout import hash_draws
from fieldwise.ops.native import missing_on
from fieldwise.training.objective import Objective
from fieldwise.training.optimizers import RunOptimizer, has_spread_l2
from fieldwise.training.settings import TrainingSettings

COMPILER = "a working C++ compiler", "install g++ or clang++"
# PyTorch's own generator also in compiled code, so that dropout masks equal those of eager mode.
COMPILING: dict[str, bool | int | str | Callable[..., Any]] = {"fallback_random": True}
# of the search for output biases
PROBE_ROWS = 8
TOLERANCE = 1e-3
UNKNOWN = 1  # the local row id of a field's unknown value
COUNTED_IDS = 1 << 21  # counted at once, or as many as the embedding table has rows


@runtime_checkable
class HasAuxiliaryLoss(Protocol):
    """Interface of networks with an auxiliary loss, such as IntTower's contrastive regularization."""

    def forward_with_auxiliary(self, batch: Batch, label: Tensor) -> tuple[Tensor, Tensor]:
        """The logit [B] and a scalar to add to the mean loss; for T labels [B, T] and one number per label [T]."""
        ...


class Step:
    """The step of a run, with everything that it changes.

    Compilation does not change the network: a separate function is compiled, so that the weights
    keep their names.

    Attributes:
        sync: with the other processes, if several share the batches.
        evaluated: the network that is evaluated and kept: with averaged weights, if there are.

    Shape:
        call: Batch of B rows, targets [B], or [B, T] of several labels, row weights [B] or None ->
            a scalar.

    Errors:
        ConfigError: at the first call, if the network cannot be compiled here.
    """

    def __init__(
        self,
        network: nn.Module,
        train: EncodedTable,
        settings: TrainingSettings,
        objective: Objective,
        seed: int,
    ) -> None:
        self.network = network
        self.objective = objective
        group = current_group()
        modules = list(network.modules())
        rows = len(train)
        size = settings.batch_size
        if min(rows, size) == 1 and any(isinstance(module, nn.BatchNorm1d) for module in modules):
            raise ConfigError(
                f"batch normalization needs batches of at least 2 rows, found batch_size {size} for {rows} training "
                "rows: raise batch_size, or set the model's batch_norm = false"
            )
        names = next(
            (result for module in modules if (result := getattr(module, "binary_settings", ()))), ()
        )
        if names and "regression" in (one.task for one in (objective, *objective.more.values())):
            ask = " and ".join(f"model.{name} = 0" for name in names)
            raise ConfigError(
                f"the model has an auxiliary loss for binary labels, but a label is a regression: set {ask}"
            )
        if group is not None:
            broadcast_parameters(network, group, settings)
        share = settings.unknown_share
        counts = value_counts(train) if share or has_spread_l2(settings) else None
        self.oov_dropout = None
        if counts is not None and share:
            self.oov_dropout = OutOfVocabularyDropout(train.layout, counts, share, seed)
            counts = self.oov_dropout.expected(counts)
        self.device = device_of(network).type
        occurrences = None
        if counts is not None and has_spread_l2(settings):
            in_a_batch = counts * (min(size, rows) / rows)
            occurrences = torch.from_numpy(in_a_batch.astype(np.float32)).to(device_of(network))
        self.optimizer = RunOptimizer(network, settings, occurrences)
        self.sync = None if group is None else GradientSync(group, self.optimizer, seed)
        self.precision = settings.precision
        self.compiled = settings.compile
        if self.precision == "bfloat16" and (warning := slow_bfloat16(self.device)):
            warnings.warn(warning, stacklevel=2)
        self.auxiliary = isinstance(network, HasAuxiliaryLoss)
        run: Callable[..., Any] = (
            network.forward_with_auxiliary if isinstance(network, HasAuxiliaryLoss) else network
        )
        self.run: Callable[..., Any] = (
            torch.compile(run, options=COMPILING) if self.compiled else run
        )
        self.parameters = list(network.parameters())
        self.mean = None
        decay = settings.average or 0.0
        if decay:
            # After step t it is `d mean + (1 - d) weights` with
            # `d = min(decay, (1 + t) / (10 + t))`: the small `d` of the first steps forgets the
            # starting values. Buffers (BatchNorm's statistics) are averaged too, counters copied.
            # Source: Polyak & Juditsky, 1992; the warm-up is that of TensorFlow's
            # ExponentialMovingAverage.
            mean = self.mean = AveragedModel(network, use_buffers=True)

            def move_mean(means: Any, values: Any, _: Tensor | int) -> None:
                if not means[0].is_floating_point():
                    torch._foreach_copy_(means, values)
                    return
                # on the CPU: the number given is a copy on the device, to be waited for
                t = float(mean.n_averaged)
                torch._foreach_lerp_(means, values, 1.0 - min(decay, (1.0 + t) / (10.0 + t)))

            mean.multi_avg_fn = move_mean
            # else the first update only copies, and the mean starts a step late
            mean.n_averaged.fill_(1)
        self.evaluated: nn.Module = network if self.mean is None else self.mean.module

    def __call__(self, batch: Batch, y: Tensor, weight: Tensor | None) -> Tensor:
        """The loss of a batch before the step."""
        for parameter in self.parameters:
            parameter.grad = None
        if self.oov_dropout is not None:
            batch = self.oov_dropout(batch)
        logit, auxiliary = self.forward(batch, y)
        wanted = list(y.shape if self.objective.more else y.shape[:1])
        result = list(logit.shape) if isinstance(logit, Tensor) else type(logit).__name__
        if result != wanted:  # broadcasting would hide it
            network = type(self.network).__name__
            raise ConfigError(
                f"{network}.forward(batch) must return one logit per row, shape {wanted}, found {result}"
            )
        data_loss = self.objective.loss(logit, y, weight)
        total = data_loss if auxiliary is None else data_loss + self.objective.weighted(auxiliary)
        if self.sync is not None:
            data_loss = data_loss * self.sync.share
            total = total * self.sync.share
        total.backward()  # type: ignore[no-untyped-call]
        if self.sync is not None:
            data_loss = self.sync(data_loss)
        self.optimizer.add_l2(batch)
        self.optimizer.step()
        if self.mean is not None:
            self.mean.update_parameters(self.network)
        return data_loss.detach()

    def forward(self, batch: Batch, y: Tensor) -> tuple[Tensor, Tensor | None]:
        """A batch's scores [B, T], or [B] of one label, and the network's auxiliary loss, if it has one: float32."""
        if self.compiled:
            # one compilation for all batch sizes, including the last batch's
            for tensor in (*batch, y):
                if tensor.numel():
                    torch._dynamo.maybe_mark_dynamic(tensor, 0)
        score: Tensor
        own: Tensor | None
        try:
            with in_precision(self.precision, self.device):
                score, own = self.run(batch, y) if self.auxiliary else (self.run(batch), None)
            if self.precision == "bfloat16":
                score = score.float()
                own = None if own is None else own.float()
            return score, own
        except torch._dynamo.exc.TorchDynamoException as e:
            why = next(
                (line.strip() for line in str(e).splitlines() if line.strip()), type(e).__name__
            )
            needs, remedy = ("Triton", "install it") if self.device == "cuda" else COMPILER
            raise ConfigError(
                f"training.compile = true needs {needs} and a network that torch.compile supports, but it failed with "
                f"{type(e).__name__} ({why}): {remedy}, or set compile = false"
            ) from e


def broadcast_parameters(
    network: nn.Module, group: ProcessGroup, settings: TrainingSettings
) -> None:
    """Give a network the weights of process 0, and let what reads a whole batch read all processes' rows.

    Batches, a device or a layer that cannot be shared are a ConfigError in all processes.
    """
    if settings.batch_size < group.size:
        raise ConfigError(
            f"each of the {group.size} processes needs a row of every batch, found training.batch_size = "
            f"{settings.batch_size}: raise it, or start fewer processes"
        )
    device = device_of(network)
    if device.type not in ("cpu", "cuda") or ":" in settings.device:
        raise ConfigError(
            f"each of the {group.size} processes trains on the CPU or takes a GPU of its own, found training.device = "
            f"{settings.device!r}: set it to cpu, or to cuda, and say by CUDA_VISIBLE_DEVICES which GPUs there are"
        )
    if device.type == "cuda":  # NCCL may hang by a shared one
        every = group.all_gather_object(str(torch.cuda.get_device_properties(device).uuid))
        shared = [
            (every.index(gpu), rank) for rank, gpu in enumerate(every) if every.index(gpu) < rank
        ]
        if shared:
            raise ConfigError(
                f"each of the {group.size} processes needs a GPU of its own, but processes {shared[0][0]} and "
                f"{shared[0][1]} would share one, which NCCL does not support: start at most as many processes on a "
                "machine as it has GPUs, or train on the device cpu"
            )
    normalize_over_processes(network)
    for tensor in network.state_dict().values():
        dist.broadcast(tensor, 0)


class GradientSync:
    """Sums losses and gradients over the processes of a training in each step.

    Gradients are equal to the bit in all processes: parameters that the optimizer moves as a whole
    travel as one buffer; of embedding tables that move by rows, ids and rows travel, one entry per
    id that was read.

    Attributes:
        noted: numbers of received signals, on which all processes act at the same step.
        agreed: whether all processes know that one of them has a signal.
        share: of this process's rows in those of the batch; times it a mean loss is a part of the
            batch's.
    """

    def __init__(self, group: ProcessGroup, optimizer: RunOptimizer, seed: int) -> None:
        self.group = group
        self.seed = seed
        self.share = 0.0
        # also of the training before
        self.noted = group.pending_signals
        self.agreed = False
        self.tables = (
            []
            if optimizer.lazy is None
            else [group["params"][0] for group in optimizer.lazy.param_groups]
        )
        self.dense = [p for p in optimizer.parameters if p.requires_grad]

    def begin(self, epoch: int, step: int, own: int, rows: int) -> None:
        """A step begins: this process has `own` of the batch's rows. Dropout's draws depend on step and process.

        `torch.manual_seed` also notes a call stack for each kind of device that is not in use: 2 ms
        in every step.
        """
        self.share = own / rows
        key = hashlib.sha256(f"step {self.seed} {epoch} {step} {self.group.rank}".encode()).digest()
        seed = int.from_bytes(key[:4], "little")
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            torch.cuda.manual_seed_all(seed)

    @torch.no_grad()
    def __call__(self, loss: Tensor) -> Tensor:
        """Make gradients those of the whole batch; returns its loss, of which `loss` is this process's part."""
        # gather ids and rows; an optimizer sums the rows of an id by the native operation
        if self.tables:
            none = torch.empty(0, dtype=torch.int64, device=self.tables[0].device)
            rows_of = [
                (none, t[:0]) if t.grad is None else (t.grad._indices()[0], t.grad._values())
                for t in self.tables
            ]
            lengths = (
                self.group.all_gather(torch.tensor([len(ids) for ids, _ in rows_of])).t().tolist()
            )
            for table, (ids, rows), each in zip(self.tables, rows_of, lengths, strict=True):
                every = (
                    self.group.all_gather_v(ids, each).view(1, -1),
                    self.group.all_gather_v(rows, each),
                )
                table.grad = torch.sparse_coo_tensor(*every, table.shape, check_invariants=False)
        # the mean over no rows is not a number
        own = loss if self.share else torch.zeros_like(loss)
        facts = [len(self.noted), *(p.grad is not None for p in self.dense)]
        grads = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in self.dense]
        summed = torch.cat([own.view(1), own.new_tensor(facts), *grads])
        dist.all_reduce(summed)
        noted, *having = summed[1 : 1 + len(facts)].tolist()
        self.agreed = noted > 0
        whole = torch.split(summed[1 + len(facts) :], [p.numel() for p in self.dense])
        for p, grad, had in zip(self.dense, whole, having, strict=True):
            p.grad = grad.view_as(p).to(p.dtype) if had else None  # None if no process has one
        return summed[0].to(loss.dtype)


def value_counts(train: EncodedTable) -> np.ndarray:
    """How often the training rows have each row of the embedding table [R]."""
    counts = np.zeros(train.layout.num_rows, np.int64)
    size = max(COUNTED_IDS, len(counts))
    # which may be on disk: read once, from the first to the last
    for ids in (train.ids, train.bag_ids[:, None]):
        rows = max(1, size // max(1, ids.shape[1]))
        for start in range(0, len(ids), rows):
            block = ids[start : start + rows].reshape(-1)
            counts += np.bincount(block.astype(np.int64), minlength=len(counts))
    return counts


class OutOfVocabularyDropout:
    """Randomly replaces values by their field's unknown value, rare ones more often.

    A value that n training rows have (`value_counts`) is replaced with probability
    `strength / (strength + n)`: the probability of a new value after n rows in a Chinese restaurant
    process with that concentration. Without this, the unknown row of a field with `min_count` 1
    never gets a gradient, and values not seen in training are scored with its random initial
    vector.
    """

    def __init__(self, layout: Layout, counts: np.ndarray, strength: float, seed: int) -> None:
        probability = np.zeros(len(counts), np.float32)
        unknown = np.arange(len(counts), dtype=np.int32)
        for f in layout.fields:
            if f.unknown:
                known = f.all_rows()[UNKNOWN + 1 :]
                probability[known] = strength / (strength + counts[known])
                unknown[known] = f.row(UNKNOWN)
        self.probability = torch.from_numpy(probability)
        self.unknown = torch.from_numpy(unknown)
        self.draws = torch.Generator().manual_seed(seed)

    def expected(self, counts: np.ndarray) -> np.ndarray:
        """The expected number [R] of each row of the embedding table in what is left of rows with these counts [R]."""
        replaced = counts * self.probability.numpy()
        result: np.ndarray = counts - replaced
        result += np.bincount(self.unknown.numpy(), replaced, minlength=len(counts))
        return result

    def __call__(self, batch: Batch) -> Batch:
        """The batch with some values replaced by unknown."""
        device = batch.ids.device
        shown = []
        if self.unknown.device != device:
            self.probability, self.unknown = self.probability.to(device), self.unknown.to(device)
        for ids in (batch.ids, batch.bag_ids):
            # of the numbers that one process would draw for the whole batch
            first, total = span_of_rows(len(ids))
            if ids.device.type == "cpu":
                drawn = torch.rand((total, *ids.shape[1:]), generator=self.draws)[
                    first : first + len(ids)
                ]
            else:
                # drawn on the device
                seed = torch.randint(0, 2**63 - 1, (), generator=self.draws).to(ids.device)
                drawn = (
                    hash_draws(seed, total, ids[:1].numel())[first : first + len(ids)].view(
                        ids.shape
                    )
                    / 2**24
                )
            rows = ids.long()
            shown.append(
                torch.where(drawn < self.probability[rows], self.unknown[rows].to(ids.dtype), ids)
            )
        return batch._replace(ids=shown[0], bag_ids=shown[1])


def move_to_device(device: str, network: nn.Module) -> torch.device:
    """Move a network to the device of a name; a warning says which operations have no fast version there."""
    result = open_device(device)
    if (sentence := missing_on(result)) is not None:
        warnings.warn(sentence, stacklevel=3)
    network.to(result)
    return result


@torch.no_grad()
def start_at_base_rate(network: nn.Module, train: EncodedTable, objective: Objective) -> list[str]:
    """Set the network's output biases so that its initial mean score is the best constant prediction.

    That is the logit of the training rows' positive rate (with half a row added to each class, so
    that it is finite), or the mean of a regression label over its scale. The scores of other
    parameters are initially near 0. Output biases are single-number parameters whose changes shift
    all scores of a batch equally; they are found by trial, so this works for your own networks too:
    one bias that is added to every score, or several whose values are averaged (FinalNet's two
    branches).

    A bias that is not 0, such as from a warm start, is not changed. The names of those that were
    set are returned.
    """
    assert train.y is not None, "training rows have targets"
    batch = train.batch(slice(0, PROBE_ROWS))[0].to(device_of(network))
    heads = getattr(network, "heads", None) if objective.more else None
    changed = []
    training = network.training
    network.eval()
    each = zip(
        [network] if heads is None else list(heads),
        train.targets.T,
        (objective, *objective.more.values()),
        strict=True,
    )
    for number, (one, y, task) in enumerate(each):
        start = base_score(y, train.weight, binary=task.task == "binary", scale=task.scale)
        biases = list[tuple[str, nn.Parameter]]()
        total = 0.0
        before: Tensor = one(batch)
        for name, parameter in one.named_parameters():
            if parameter.numel() != 1:
                continue
            old = parameter.clone()
            parameter.add_(1.0)
            change = one(batch) - before
            parameter.copy_(old)
            share = float(change.mean())
            alike = share > TOLERANCE and float((change - share).abs().max()) < TOLERANCE
            # if two each add their whole value, use the first
            if alike and total + share < 1.0 + TOLERANCE:
                biases.append((name, parameter))
                total += share
        for name, parameter in biases if abs(total - 1.0) < TOLERANCE else []:
            if not bool(parameter.count_nonzero()):  # else from a warm start
                parameter.fill_(start)
                changed.append(name if heads is None else f"heads.{number}.{name}")
    network.train(training)
    return changed


def base_score(
    y: np.ndarray, weight: np.ndarray | None = None, *, binary: bool, scale: float = 1.0
) -> float:
    """The best constant score for rows with these targets [N] and weights [N]; `scale` as of `Objective`.

    >>> round(base_score(np.array([1.0, 0.0, 0.0, 0.0]), binary=True), 6) == round(math.log(1.5 / 3.5), 6)
    True
    >>> base_score(np.array([2.0, 4.0]), binary=False)
    3.0
    """
    mean = mean_target(y, weight, scale=scale)
    if not binary:
        return mean
    return math.log((mean * len(y) + 0.5) / ((1.0 - mean) * len(y) + 0.5))
