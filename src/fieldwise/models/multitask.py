"""A network of several labels: one head per label over a shared embedding table.

Letters: B batch, R rows of the shared table, T labels.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Batch


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
