"""Building networks from settings with a seed, also for several labels or in a mean with LR, and settings from values.

Letters: B batch, R rows of the shared table, T labels.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from fieldwise.config import parse, to_plain
from fieldwise.errors import BundleError, ConfigError
from fieldwise.layers import FieldEmbedding, FirstOrder, kept_rows
from fieldwise.layout import Batch, Layout
from fieldwise.models.registry import known_models, location, model_class, settings_class
from fieldwise.models.settings import ModelSettings
from fieldwise.models.twotower import TwoTower
from fieldwise.ops.devices import device_of

NETWORK = "network."  # before the names of a network's parameters in a mean with LR
ENTRY = 50  # bytes that a tensor takes at least in the header of a weights file


class MultiTask(nn.Module):
    """A multi-task network, `logit_t = head_t(batch)`: one network per label, over a shared embedding table.

    The embedding table is shared and everything above it is separate per label, as in ESMM (Ma et
    al., SIGIR 2018, arXiv 1804.07931). First-order weights, and any other tables of a model, are
    separate too.

    NOTE[DIFF]: ESMM multiplies its two probabilities, pCTCVR = pCTR * pCVR, and learns CVR through
    that product over all impressions; here every label has its own logit and loss.

    Parameters: `embedding.weight` [R, D] once, if the model has such a table; a head's others, with
    the names of the single network, below `heads.0.`, `heads.1.` and so on, in the labels' order.

    Args:
        heads: networks of one model and one layout; the first one's table becomes the shared one.

    Shape:
        forward: Batch of B rows -> [B, T].
    """

    def __init__(self, heads: Sequence[nn.Module]) -> None:
        super().__init__()
        shared = getattr(heads[0], "embedding", None)
        if isinstance(shared, FieldEmbedding):
            self.embedding = shared
            for head in heads:
                del head.embedding
                # Bypass nn.Module's __setattr__, which would register the table in every head:
                # parameters, saved tensors and L2 count it once, and load_state_dict finds it once.
                object.__setattr__(head, "embedding", shared)
        self.heads = nn.ModuleList(heads)

    def forward(self, batch: Batch) -> Tensor:
        return torch.stack([head(batch) for head in self.heads], dim=1)


class MultiTaskWithAuxiliary(MultiTask):
    """`MultiTask` for a model whose networks have an auxiliary loss.

    A separate class, so that the training loop asks only networks with an auxiliary loss for it.
    """

    def forward_with_auxiliary(self, batch: Batch, label_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The logits [B, T], and every head's auxiliary loss on its own label [T]."""
        columns = zip(self.heads, label_BT.unbind(1), strict=True)
        pairs = [head.forward_with_auxiliary(batch, label_B) for head, label_B in columns]  # type: ignore[operator]
        logits_B, losses = zip(*pairs, strict=True)
        return torch.stack(logits_B, dim=1), torch.stack(losses)


class MeanWithLR(nn.Module):
    """`logit = s network(batch) + (1 - s) lr(batch)`: the mean of a network and an LR of the same fields.

    Parameters: the network's, below `network.`; `lr.embedding.weight` [R, 1] and `lr.bias`. The
    share s is a buffer.

    Args:
        network: a network of one label.
        layout: its fields.
        share: s, from 0 (LR alone) to 1 (the network alone).

    Shape:
        forward: Batch of B rows -> [B].
    """

    def __init__(self, network: nn.Module, layout: Layout, share: float = 1.0) -> None:
        super().__init__()
        self.network = network
        self.lr = FirstOrder(layout)
        self.share = nn.Buffer(torch.tensor(share))

    def forward(self, batch: Batch) -> Tensor:
        return self.mean(self.network(batch), self.lr(batch))

    def mean(self, network_B: Tensor, lr_B: Tensor) -> Tensor:
        """The mean of both parts' logits [B]."""
        return self.share * network_B + (1 - self.share) * lr_B

    @property
    def pair_terms(self) -> bool:
        """Whether `logit_terms` has pairs: serving asks."""
        return getattr(self.network, "pair_terms", False)

    def logit_terms(self, batch: Batch) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The network's terms times s and LR's times 1 - s, added by name; none if the network has none.

        The parts that are shown beside them are those of the network alone.
        """
        of_network = vars(type(self.network)).get("logit_terms")
        if of_network is None:
            return {}, {}
        terms, shown = of_network(self.network, batch)
        added = {name: self.share * term for name, term in terms.items()}
        for name, term in self.lr.terms(batch).items():
            of_lr = (1 - self.share) * term
            added[name] = added[name] + of_lr if name in added else of_lr
        return added, shown


class MeanWithLRAndAuxiliary(MeanWithLR):
    """`MeanWithLR` of a network with an auxiliary loss; a separate class for the reason of `MultiTaskWithAuxiliary`."""

    def forward_with_auxiliary(self, batch: Batch, label_B: Tensor) -> tuple[Tensor, Tensor]:
        """The logits [B], and the network's auxiliary loss (a scalar)."""
        logit_B, loss = self.network.forward_with_auxiliary(batch, label_B)  # type: ignore[operator]
        return self.mean(logit_B, self.lr(batch)), loss


def mean_with_lr(network: nn.Module, layout: Layout, share: float = 1.0) -> MeanWithLR:
    """A network in a mean with an LR of zeros; the network becomes a part of it.

    Errors:
        ConfigError: as for `check_takes_mean`.

    >>> from fieldwise.models import FM
    >>> layout = Layout.of_sizes([3, 4])
    >>> mean = mean_with_lr(FM(embedding_dim=4).build(layout), layout, 0.25)
    >>> sorted(mean.state_dict())[:3]
    ['lr.bias', 'lr.embedding.weight', 'network.embedding.weight']
    >>> network_share(mean), network_share(mean.network)
    (0.25, 1.0)
    """
    check_takes_mean(network)
    if hasattr(network, "forward_with_auxiliary"):
        return MeanWithLRAndAuxiliary(network, layout, share)
    return MeanWithLR(network, layout, share)


def takes_mean(network: nn.Module) -> bool:
    """Whether a network can be in a mean with LR.

    Not with several labels; nor with two towers (`TwoTower`), whose stored representations have no
    place for LR.
    """
    return not isinstance(network, (TwoTower, MultiTask))


def check_takes_mean(network: nn.Module) -> None:
    """Check that a network can be in a mean with LR (`takes_mean`); else a ConfigError."""
    if takes_mean(network):
        return
    why = "has several labels"
    if isinstance(network, TwoTower):
        why = "has two towers, whose stored vectors have no place for LR"
    raise ConfigError(
        f"a mean with LR needs one score of a whole row, but {type(network).__name__} {why}: set mean_with_lr to false"
    )


def network_share(network: nn.Module) -> float:
    """The share of the trained network in its mean with LR: 0 if LR alone is left, 1 without a mean."""
    return round(float(network.share), 4) if isinstance(network, MeanWithLR) else 1.0


def mean_sentence(share: float) -> str | None:
    """A sentence about a model whose network has this share in its mean with LR; None without a mean.

    >>> mean_sentence(0.37)
    'The model is the mean of the network (37%) and LR (63%), by the validation rows.'
    >>> mean_sentence(0.0)
    'The model is LR alone (the network has 0% of its mean with LR), by the validation rows.'
    """
    if share == 1:
        return None
    if share == 0:
        return "The model is LR alone (the network has 0% of its mean with LR), by the validation rows."
    return f"The model is the mean of the network ({share:.0%}) and LR ({1 - share:.0%}), by the validation rows."


def as_former(network: nn.Module, layout: Layout, former: nn.Module | None) -> nn.Module:
    """A new network for a warm start from a former one: in a mean with LR too, of the same share, if it can be."""
    if isinstance(former, MeanWithLR) and takes_mean(network):
        return mean_with_lr(network, layout, network_share(former))
    return network


def part_of_mean(network: nn.Module) -> nn.Module:
    """The network within a mean with LR; any other network itself."""
    return network.network if isinstance(network, MeanWithLR) else network


def build_network(
    settings: ModelSettings, layout: Layout, seed: int, *, labels: int = 1, in_mean: bool = False
) -> nn.Module:
    """A network with seeded weights; the global random state is not changed.

    With several labels it has one head per label and returns scores [B, T] (`MultiTask`). `in_mean`
    is for the weights of a mean with LR (`MeanWithLR`).

    >>> from fieldwise.models import FM
    >>> network = build_network(FM(embedding_dim=4), Layout.of_sizes([3, 4]), 0, labels=2)
    >>> [name for name in network.state_dict() if not name.startswith("heads.1.")]
    ['embedding.weight', 'heads.0.first_order.bias', 'heads.0.first_order.embedding.weight']
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = [settings.build(layout) for _ in range(labels)]
    if in_mean:
        return mean_with_lr(networks[0], layout)
    if labels == 1:
        return networks[0]
    if hasattr(networks[0], "forward_with_auxiliary"):
        return MultiTaskWithAuxiliary(networks)
    return MultiTask(networks)


@contextmanager
def parameters_within(weights: bytes | bytearray) -> Iterator[None]:
    """Stop building a network, in this thread, once it has more parameters than a weights file has bytes.

    Every parameter takes at least a byte there, so such a network does not belong to the file; a
    million layers would otherwise be built first.

    >>> with parameters_within(bytes(1000)):
    ...     len([nn.Linear(4, 4) for _ in range(5)])
    5
    >>> with parameters_within(bytes(1000)):
    ...     [nn.Linear(4, 4) for _ in range(10**6)]
    Traceback (most recent call last):
        ...
    fieldwise.errors.BundleError: the settings describe a network that does not fit in its weights file of 1,000 bytes
    """
    thread = threading.get_ident()
    most = len(weights)
    count = 0

    def add(_: nn.Module, __: str, parameter: nn.Parameter) -> None:
        nonlocal count
        if parameter is not None and threading.get_ident() == thread:
            count += parameter.numel() + ENTRY
            if count > most:
                raise BundleError(
                    f"the settings describe a network that does not fit in its weights file of {most:,} bytes"
                )

    handle = register_module_parameter_registration_hook(add)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def grow_network(
    former: nn.Module, settings: ModelSettings, layout: Layout, seed: int, *, labels: int = 1
) -> nn.Module:
    """A network for a grown encoder's layout with the weights of its former network, on that one's device.

    Rows of the encoder from before score to the bit as they did. The weights of new values are
    those of `build_network`; a cross of categories (Wide & Deep) with a new value is new.

    Errors:
        ConfigError: a tensor beside the tables has another shape, which only a model of your own
            can have.
    """
    network = build_network(
        settings, layout, seed, labels=labels, in_mean=isinstance(former, MeanWithLR)
    )
    rows_kept = kept_rows(former, network)
    before = former.state_dict()
    for name, tensor in network.state_dict().items():
        tensor[rows_kept.get(name, ...)] = before[name].to(tensor.device)
    return network.to(device_of(former)).train(former.training)


def model_from_dict(data: Mapping[str, Any], where: str = "model") -> ModelSettings:
    """Settings from a mapping whose `name` is one of `MODELS`, or of a model of your own that is registered.

    Errors:
        ConfigError: an unknown name or a wrong setting, below `where`.

    >>> model_from_dict({"name": "afm", "attention_dim": 8}).attention_dim
    8
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} must be a table of settings, found {data!r}")
    cls = model_class(data.get("name"), where)
    return parse(cls, {k: v for k, v in data.items() if k != "name"}, where)


def model_name(settings: ModelSettings) -> str:
    """The model's name in recipes; `package.module:Class` for your own model that is not registered."""
    for name, known in known_models().items():
        if type(settings) is known:
            return name
    return location(settings_class(type(settings)))


def model_to_dict(settings: ModelSettings) -> dict[str, Any]:
    """The inverse of `model_from_dict`."""
    return {"name": model_name(settings), **to_plain(settings)}
