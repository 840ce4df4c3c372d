"""Building networks from settings with a seed, also for several labels, and settings from plain values.

Letters: B batch, T labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fieldwise.config import parse, to_plain
from fieldwise.errors import ConfigError
from fieldwise.layers import FieldEmbedding, kept_rows
from fieldwise.layout import Batch, Layout
from fieldwise.models.own import known_models, location, model_class, settings_class
from fieldwise.models.settings import ModelSettings
from fieldwise.ops.devices import device_of


class MultiTask(nn.Module):
    """A multi-task network, `logit_t = head_t(batch)`: one network per label, over a shared embedding table.

    The embedding table is shared and everything above it is separate per label, as in ESMM (Ma et al., SIGIR 2018,
    arXiv 1804.07931). First-order weights, and any other tables of a model, are separate too.

    NOTE[DIFF]: ESMM multiplies its two probabilities, pCTCVR = pCTR * pCVR, and learns CVR through that product over
    all impressions; here every label has its own logit and loss.

    Parameters: `embedding.weight` [R, D] once, if the model has such a table; a head's others, with the names of the
    single network, below `heads.0.`, `heads.1.` and so on, in the labels' order.

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
                # Bypass nn.Module's __setattr__, which would register the table in every head: parameters, saved
                # tensors and L2 count it once, and load_state_dict finds it once.
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
        return torch.stack([logit_B for logit_B, _ in pairs], dim=1), torch.stack([loss for _, loss in pairs])


def build_network(settings: ModelSettings, layout: Layout, seed: int, *, labels: int = 1) -> nn.Module:
    """A network with seeded weights; the global random state is not changed.

    With several labels it has one head per label and returns scores [B, T] (`MultiTask`).

    >>> from fieldwise.models import FM
    >>> network = build_network(FM(embedding_dim=4), Layout.of_sizes([3, 4]), 0, labels=2)
    >>> [name for name in network.state_dict() if not name.startswith("heads.1.")]
    ['embedding.weight', 'heads.0.first_order.bias', 'heads.0.first_order.embedding.weight']
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        networks = [settings.build(layout) for _ in range(labels)]
    if labels == 1:
        return networks[0]
    return (MultiTaskWithAuxiliary if hasattr(networks[0], "forward_with_auxiliary") else MultiTask)(networks)


@torch.no_grad()
def grow_network(
    former: nn.Module, settings: ModelSettings, layout: Layout, seed: int, *, labels: int = 1
) -> nn.Module:
    """A network for a grown encoder's layout with the weights of its former network, on that one's device.

    Rows of the encoder from before score to the bit as they did. The weights of new values are those of
    `build_network`; a cross of categories (Wide & Deep) with a new value is new.

    Errors:
        ConfigError: a tensor beside the tables has another shape, which only a model of your own can have.
    """
    network = build_network(settings, layout, seed, labels=labels)
    kept, before = kept_rows(former, network), former.state_dict()
    for name, tensor in network.state_dict().items():
        tensor[kept.get(name, ...)] = before[name].to(tensor.device)
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
