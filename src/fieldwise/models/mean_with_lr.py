"""The mean of a network and an LR of the same fields.

Letters: B batch, R rows of the shared table.
"""

import torch
from torch import Tensor, nn

from fieldwise.errors import ConfigError
from fieldwise.layers import FirstOrder
from fieldwise.layout import Batch, Layout
from fieldwise.models.multitask import MultiTask
from fieldwise.models.twotower import TwoTower

NETWORK = "network."  # before the names of a network's parameters in a mean with LR


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
