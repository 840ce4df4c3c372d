"""Several labels learned at once: one network each, over one shared embedding table.

Letters: B batch, T labels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Batch

__all__ = ["SeveralLabels", "SeveralLabelsWithAuxiliary", "several_labels"]


class SeveralLabels(nn.Module):
    """`logit_t = head_t(batch)`: a network a label, all of them reading their fields' vectors from one table.

    The embedding table is shared and everything above it is the label's own, as in ESMM (Ma et al., SIGIR 2018,
    arXiv 1804.07931). First-order weights, and whatever other tables a model has, are a head's own.

    NOTE[DIFF]: ESMM multiplies its two probabilities, pCTCVR = pCTR * pCVR, and learns CVR through that product over
    all impressions; here every label has a logit and a loss of its own.

    Parameters: `embedding.weight` [R, D] once, where the model has such a table; a head's others as the single network
    names them, below `heads.0.`, `heads.1.` and so on, in the labels' order.

    Args:
        heads: single networks of one model and one layout; the first one's table becomes the shared one.

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
                # Past nn.Module's own __setattr__, which would register the table in every head: parameters, saved
                # tensors and L2 count it once, and load_state_dict finds it once.
                object.__setattr__(head, "embedding", shared)
        self.heads = nn.ModuleList(heads)

    def forward(self, batch: Batch) -> Tensor:
        """The logits [B, T]."""
        return torch.stack([head(batch) for head in self.heads], dim=1)


class SeveralLabelsWithAuxiliary(SeveralLabels):
    """`SeveralLabels` of a model whose networks have a loss of their own beside that on the logit.

    A class by itself, so that the training loop asks exactly those networks for it that have one.
    """

    def forward_with_auxiliary(self, batch: Batch, label_BT: Tensor) -> tuple[Tensor, Tensor]:
        """The logits [B, T], and the auxiliary loss of every head by its own label [T]."""
        columns = zip(self.heads, label_BT.unbind(1), strict=True)
        pairs = [head.forward_with_auxiliary(batch, label_B) for head, label_B in columns]  # type: ignore[operator]
        return torch.stack([logit_B for logit_B, _ in pairs], dim=1), torch.stack([loss for _, loss in pairs])


def several_labels(heads: Sequence[nn.Module]) -> SeveralLabels:
    """One network of single ones, with an auxiliary loss where they have one.

    >>> from fieldwise.layout import Layout
    >>> from fieldwise.models import FM
    >>> network = several_labels([FM(embedding_dim=4).build(Layout.of_sizes([3, 4])) for _ in range(2)])
    >>> [name for name in network.state_dict() if not name.startswith("heads.1.")]
    ['embedding.weight', 'heads.0.first_order.bias', 'heads.0.first_order.embedding.weight']
    """
    has_auxiliary = hasattr(heads[0], "forward_with_auxiliary")
    return SeveralLabelsWithAuxiliary(heads) if has_auxiliary else SeveralLabels(heads)
