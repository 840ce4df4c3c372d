"""The contract for models of one's own: fieldwise's models keep it, and every fault that it names is found."""

import pytest
import torch
from torch import nn

from fieldwise import AFM, IntTower, testing
from fieldwise.layers import FieldEmbedding
from fieldwise.models.registry import as_settings

LAYOUT = testing.small_layout()
MIXING = "a row is scored by itself"


class Sound(nn.Module):
    def __init__(self, layout, *, width: int = 4):
        super().__init__()
        self.embedding, self.out = (
            FieldEmbedding(layout, width, std=0.5),
            nn.Linear(width * layout.num_fields, 1),
        )

    def forward(self, batch):
        return self.out(self.embedding(batch).flatten(1)).squeeze(1)


class Column(Sound):
    def forward(self, batch):
        return super().forward(batch).unsqueeze(1)


class Double(Sound):
    def forward(self, batch):
        return super().forward(batch).double()


class Centered(Sound):
    def forward(self, batch):
        logit = super().forward(batch)
        return logit - logit.sum() / max(1, len(logit))


class Unused(Sound):
    def __init__(self, layout):
        super().__init__(layout)
        self.spare = nn.Parameter(torch.zeros(2))


class OwnDraw(Sound):
    def __init__(self, layout):
        super().__init__(layout)
        self.out.bias.data.normal_(generator=torch.Generator().manual_seed(torch.seed() % 2**31))


class Remembers(Sound):
    def __init__(self, layout):
        super().__init__(layout)
        self.register_buffer("seen", torch.zeros(()), persistent=True)

    def forward(self, batch):
        self.seen += 1
        return super().forward(batch)


class AlwaysDrops(Sound):
    def forward(self, batch):
        return super().forward(batch) * torch.bernoulli(torch.full((batch.size,), 0.5))


class Hidden(Sound):
    """A number that decides the scores and is in no state_dict."""

    def __init__(self, layout):
        super().__init__(layout)
        self.shift = float(torch.rand(()))

    def forward(self, batch):
        return super().forward(batch) + self.shift


class Constant(nn.Module):
    def __init__(self, layout):
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, batch):
        return self.bias.expand(batch.size)


def test_sound_models_keep_the_contract(subtests):
    for model, kind in [
        (Sound, "categorical"),
        (AFM(embedding_dim=4), "mixed"),
        (IntTower(hidden=(8,), head_dim=4), "mixed"),
    ]:
        with subtests.test(model=model, kind=kind):
            testing.check_model(model, testing.small_layout(kind))


def test_every_fault_is_found(subtests):
    for model, check, sentence in [
        (Column, "one logit a row", r"a batch of 0 rows must have logits \[0\], found \[0, 1\]"),
        (Double, "one logit a row", "must be float32, found torch.float64"),
        (Centered, MIXING, "must not depend on the others"),
        (Unused, "every weight has a gradient", "the parameter spare has no gradient"),
        (OwnDraw, "a seed decides the weights", "out.bias differs"),
        (Remembers, "evaluation changes nothing", "changed seen"),
        (AlwaysDrops, "evaluation changes nothing", "the same logits every time"),
        (Hidden, "weights are all there is", "must score like the one whose state_dict it loads"),
        (Constant, "it learns", r"found 0\.693"),
    ]:
        with subtests.test(model=model, check=check, sentence=sentence):
            torch.manual_seed(0)
            with pytest.raises(AssertionError, match=sentence):
                testing.CHECKS[check](as_settings(model), LAYOUT)
            with pytest.raises(AssertionError):
                testing.check_model(model)


def test_training_that_draws_from_elsewhere_is_found():
    import numpy as np

    draw = np.random.default_rng(0)

    class Drifts(Sound):
        def forward(self, batch):
            return super().forward(batch) + (float(draw.normal()) if self.training else 0.0)

    network_is_trained_twice = testing.CHECKS["seeded training repeats"]
    network_is_trained_twice(as_settings(Sound), LAYOUT)
    with pytest.raises(AssertionError, match="must repeat itself"):
        network_is_trained_twice(as_settings(Drifts), LAYOUT)


def test_rows_of_a_batch_are_those_rows():
    batch = testing.random_batch(LAYOUT, 5)
    chosen = testing.rows_of(LAYOUT, batch, [3, 1])
    assert torch.equal(chosen.ids, batch.ids[[3, 1]])
    bags = len(LAYOUT.positions(kind="bag"))
    for new, old in enumerate([3, 1]):
        for g in range(bags):
            kept = chosen.bag_ids[chosen.bag_segments == new * bags + g]
            assert torch.equal(kept, batch.bag_ids[batch.bag_segments == old * bags + g])
