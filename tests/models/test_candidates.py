"""One context against many candidates: the scores of the full rows, for every model, however the fields are split."""

import numpy as np
import pytest
import torch
from parity.lab import LAYOUTS
from parity.reference import FIRST, REFERENCES, hardest, main_cases
from torch.utils.flop_counter import FlopCounterMode

from fieldwise import AFM, FM, LR, Batch, ConfigError, DataError, DeepFM, IntTower, Layout
from fieldwise.layers.candidates import Part, Split
from fieldwise.models import NETWORKS
from fieldwise.models.build import build_network
from fieldwise.ops import use_ops
from fieldwise.scoring import candidates as module
from fieldwise.scoring.candidates import joined, shares_context
from fieldwise.testing import rows_of as take

ALWAYS = {"lr", "fm", "afm", "deepfm"}
TOWERS = {"dssm", "dat", "inttower"}


def scored(network, split, context, candidates):
    """The scores of the candidates' batch in the context's."""
    return module.score_candidates(
        network, split, Part(split.context, context), Part(split.candidates, candidates)
    )


def cases(name):
    """The models that share what the context gives on every layout, their variants and the others on the hardest."""
    return (
        main_cases(name)
        if name in ALWAYS | TOWERS
        else [(next(iter(REFERENCES[name].CASES)), hardest(name))]
    )


def request(lab, layout, full, split):
    """The context of row 0 of `full`, all rows' candidates, and the full rows that these make."""
    repeated = take(layout, full, [0] * full.size)
    context = lab.fields_of(layout, take(layout, full, [0]), split.context.positions)
    candidates = lab.fields_of(layout, full, split.candidates.positions)
    return context, candidates, lab.with_fields_of(layout, full, repeated, split.context.positions)


def splits(layout, seed):
    """The split by roles, and two random ones."""
    rng = np.random.default_rng(seed)
    drawn = [
        rng.choice(
            layout.num_fields, size=rng.integers(1, layout.num_fields), replace=False
        ).tolist()
        for _ in range(2)
    ]
    return [Split.by_role(layout), *(Split.at(layout, positions) for positions in drawn)]


def test_candidates_score_as_their_full_rows(lab, subtests):
    for name, case, layout_name in [(one, *place) for one in REFERENCES for place in cases(one)]:
        layout = LAYOUTS[layout_name]
        network, full = (
            lab.randomized(REFERENCES[name].CASES[case].build(layout)),
            lab.batch(layout, 5),
        )
        for split in splits(layout, seed=layout.num_rows):
            with subtests.test(
                name=name, case=case, layout=layout_name, context=split.context.positions
            ):
                context, candidates, rows = request(lab, layout, full, split)
                result = scored(network, split, context, candidates)
                torch.testing.assert_close(result, network(rows).detach(), atol=1e-10, rtol=1e-10)


def test_blocks_of_any_number_of_candidates_and_of_several_labels(lab, monkeypatch, subtests):
    monkeypatch.setattr(module, "SCORING_BATCH", 3)
    for name in sorted(ALWAYS | TOWERS | {"din"}):
        with subtests.test(name=name):
            layout = LAYOUTS[hardest(name)]
            network = lab.randomized(build_network(FIRST[name], layout, 0, labels=2))
            split = Split.by_role(layout)
            for rows in (1, 7):
                context, candidates, whole = request(lab, layout, lab.batch(layout, rows), split)
                result = scored(network, split, context, candidates)
                assert result.shape == (rows, 2)
                torch.testing.assert_close(result, network(whole).detach(), atol=1e-10, rtol=1e-10)
            none = lab.take(split.candidates.layout, candidates, [])
            assert scored(network, split, context, none).shape == (0, 2)


def test_float32_as_encoded_tables_hold_it(subtests, lab):
    """Ids are int32 and numbers float32 there; logits of fresh networks are of order 1."""
    for name in ("afm", "deepfm", "inttower", "din"):
        with subtests.test(name=name):
            layout = LAYOUTS[hardest(name)]
            network, split = (
                build_network(NETWORKS[name](), layout, 0).eval(),
                Split.by_role(layout),
            )
            context, candidates, rows = (
                Batch(
                    b.ids.int(),
                    b.values.float(),
                    b.bag_ids.int(),
                    b.bag_segments,
                    b.bag_weights.float(),
                )
                for b in request(lab, layout, lab.batch(layout, 6), split)
            )
            result = scored(network, split, context, candidates)
            assert result.dtype == torch.float32
            torch.testing.assert_close(result, network(rows).detach(), atol=1e-6, rtol=1e-6)


def test_which_networks_share_depends_on_the_split_for_towers_alone():
    layout = LAYOUTS["history"]
    by_role, without_user = Split.by_role(layout), Split.at(layout, [0, 1, 3])
    for name, reference in REFERENCES.items():
        network = next(iter(reference.CASES.values())).build(layout)
        assert shares_context(network, by_role) == (name in ALWAYS | TOWERS), name
        assert shares_context(network, without_user) == (name in ALWAYS), name


def test_joined_rows_are_the_full_rows(subtests, lab):
    for name in LAYOUTS:
        with subtests.test(name=name):
            layout = LAYOUTS[name]
            full = lab.batch(layout, 4, seed=3)
            for split in splits(layout, seed=1):
                context, candidates, rows = request(lab, layout, full, split)
                for result, expected in zip(joined(split, context, candidates), rows, strict=True):
                    torch.testing.assert_close(result, expected, atol=0, rtol=0)


# What is computed once: products counted


F, C, D, A = 12, 9, 4, 6
WIDE = Layout.of_sizes([5] * F, ["user"] * 5 + ["item"] * (F - C) + ["context"] * (C - 5))


def products(network, rows):
    """Multiplications within matrix products that scoring so many candidates takes, in plain PyTorch."""
    split = Split.by_role(WIDE)
    generator = torch.Generator().manual_seed(rows)
    ids = [
        torch.randint(0, 5, (n, len(side.positions)), generator=generator)
        + 5 * torch.tensor(side.positions)
        for n, side in ((1, split.context), (rows, split.candidates))
    ]
    parts = [Batch.of_ids(i) for i in ids]
    with use_ops("plain"), FlopCounterMode(display=False) as counter:
        scored(network, split, *parts)
    return counter.get_total_flops() // 2


def per_candidate(network):
    """How many more each further candidate takes, which must not depend on how many there are."""
    assert module.SCORING_BATCH > 40
    one, ten, forty = (products(network, n) for n in (1, 10, 40))
    assert (forty - ten) == 30 * (ten - one) // 9
    return (ten - one) / 9, one - (ten - one) / 9


def test_afm_attends_to_the_pairs_inside_the_context_once():
    each, once = per_candidate(AFM(embedding_dim=D, attention_dim=A).build(WIDE).eval())
    items = F - C
    crossing, among, inside = C * items, items * (items - 1) // 2, C * (C - 1) // 2
    assert crossing + among + inside == F * (F - 1) // 2
    # W times every pair's product; and the pooling of the pairs by their weights.
    assert each == (crossing + among) * A * D + (crossing + among) * D
    assert once == inside * A * D


def test_an_mlp_shares_its_first_layer():
    network = DeepFM(embedding_dim=D, hidden=(7, 3)).build(WIDE).eval()
    assert per_candidate(network)[0] == (F - C) * D * 7 + 7 * 3 + 3


def test_a_user_tower_runs_once():
    settings = IntTower(embedding_dim=D, hidden=(7, 5), user_heads=2, item_heads=3, head_dim=2)
    network = settings.build(WIDE).eval()
    items = F - C
    tower = items * items + items * D * 7 + 7 * 5 + 5 * 3 * 2
    # Light-SE, MLP, heads; and 2 levels of 2 by 3 heads
    assert per_candidate(network)[0] == tower + 2 * 2 * 3 * 2


# Modes and refusals


def test_a_network_in_training_scores_as_in_evaluation_and_stays_in_training(lab):
    layout = LAYOUTS["mixed"]
    network = lab.randomized(AFM(embedding_dim=3, attention_dim=2, dropout=0.5).build(layout))
    split = Split.by_role(layout)
    context, candidates, rows = request(lab, layout, lab.batch(layout, 4), split)
    expected = network(rows).detach()
    network.train()
    result = scored(network, split, context, candidates)
    torch.testing.assert_close(result, expected, atol=1e-10, rtol=1e-10)
    assert network.training
    assert network.attention.training
    assert not result.requires_grad


def test_weights_that_change_are_read_anew(lab):
    """A split may be kept: it holds no number of the network."""
    layout = LAYOUTS["mixed"]
    network, split = lab.randomized(FM(embedding_dim=3).build(layout)), Split.by_role(layout)
    context, candidates, rows = request(lab, layout, lab.batch(layout, 4), split)
    scored(network, split, context, candidates)
    with torch.no_grad():
        network.embedding.weight.mul_(1.5)
    result = scored(network, split, context, candidates)
    torch.testing.assert_close(result, network(rows).detach(), atol=1e-10, rtol=1e-10)
    network.embedding.weight = torch.nn.Parameter(torch.randn_like(network.embedding.weight))
    result = scored(network, split, context, candidates)
    torch.testing.assert_close(result, network(rows).detach(), atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_context_is_one_row(lab, rows):
    layout = LAYOUTS["mixed"]
    network, split = LR().build(layout), Split.by_role(layout)
    context, candidates, _ = request(lab, layout, lab.batch(layout, 4), split)
    several = take(split.context.layout, context, [0] * rows)
    with pytest.raises(DataError, match=f"in one context, found {rows} context rows"):
        scored(network, split, several, candidates)


def test_both_sides_give_fields_of_the_layout(subtests):
    for positions in [[], range(7), [7], [-1]]:
        with (
            subtests.test(positions=positions),
            pytest.raises(ConfigError, match="must each have at least one of the layout's fields"),
        ):
            Split.at(LAYOUTS["mixed"], positions)
