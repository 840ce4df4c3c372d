"""A network in a mean with LR: by hand for every model, wherever a network is read, and saved, grown, started from."""

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch
from parity.lab import LAYOUTS
from parity.reference import FIRST, hardest
from random_bundle import random_bundle

from fieldwise import (
    FM,
    LR,
    AutoInt,
    AutoIntPlus,
    Bag,
    Bundle,
    Categorical,
    ConfigError,
    FinalNet,
    Label,
    Numeric,
    Schema,
    load_recipe,
    prepare_recipe,
    train_recipe,
)
from fieldwise.bundle.warm_start import warm_start
from fieldwise.explain import terms_of
from fieldwise.explain.explanation import explain
from fieldwise.layers.candidates import Part, Split
from fieldwise.models import NETWORKS
from fieldwise.models.build import build_network
from fieldwise.models.mean_with_lr import as_former, mean_with_lr, network_share, takes_mean
from fieldwise.scoring.candidates import score_candidates, shares_context
from fieldwise.testing import rows_of
from fieldwise.training.optimizers import RunOptimizer
from fieldwise.training.settings import TrainingSettings
from fieldwise.training.step import HasAuxiliaryLoss

SHARE = 0.3
TOWERS = {"dat", "dssm", "inttower"}
RANKING = sorted(NETWORKS.keys() - TOWERS)
ROWS = pl.DataFrame(
    {
        "a": ["p", "q", "q", "r", None],
        "n": [1.0, 2.0, 3.0, 4.0, 0.5],
        "t": ["x", "x|y", "y", "z", ""],
        "y": [0, 1, 0, 1, 1],
    }
)
SCHEMA = Schema(
    fields=(Categorical("a", role="user"), Numeric("n", role="item"), Bag("t", role="item")),
    label=Label("y"),
)
SMALL = AutoIntPlus(embedding_dim=4, layers=1, attention_dim=4, hidden=(6,))


def in_mean(lab, name, share=SHARE):
    """A mean of a model's network with LR, all weights at random, its layout, and a batch."""
    layout = LAYOUTS[hardest(name)]
    network = build_network(FIRST[name], layout, 0, in_mean=True)
    lab.randomized(network)
    network.share.fill_(share)
    return network, layout, lab.batch(layout, 6)


def mean_bundle(settings=SMALL, share=SHARE):
    bundle = random_bundle(settings, SCHEMA, ROWS)
    layout = bundle.encoder.layout
    network = mean_with_lr(bundle.network, layout, share).eval()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(5)
        for parameter in network.lr.parameters():
            parameter.normal_(generator=generator)
    return dataclasses.replace(bundle, network=network)


def by_hand(bundle, frame):
    """The scores of a mean's two parts, each as a bundle of its own, in their shares."""
    network = dataclasses.replace(bundle, network=bundle.network.network)
    lr_network = LR().build(bundle.encoder.layout).eval()
    lr_network.first_order.load_state_dict(bundle.network.lr.state_dict())
    lr = dataclasses.replace(bundle, settings=LR(), network=lr_network)
    return SHARE * network.score(frame) + (1 - SHARE) * lr.score(frame)


def test_every_ranking_model_and_no_two_towers_takes_a_mean(lab, subtests):
    for name in NETWORKS:
        with subtests.test(name=name):
            network = FIRST[name].build(LAYOUTS[hardest(name)])
            assert takes_mean(network) == (name not in TOWERS)
    for name, labels, why in [("inttower", 1, "has two towers"), ("fm", 2, "has several labels")]:
        layout = LAYOUTS[hardest(name)]
        with pytest.raises(ConfigError, match=why):
            mean_with_lr(build_network(FIRST[name], layout, 0, labels=labels), layout)


def test_scores_terms_and_candidates_are_those_of_the_parts_in_their_shares(lab, subtests):
    for name in RANKING:
        with subtests.test(name=name):
            network, layout, batch = in_mean(lab, name)
            lr = LR().build(layout).double().eval()
            lr.first_order.load_state_dict(network.lr.state_dict())
            expected = SHARE * network.network(batch) + (1 - SHARE) * lr(batch)
            torch.testing.assert_close(network(batch), expected, atol=1e-12, rtol=1e-12)
            added = network.logit_terms(batch)[0]
            assert bool(added) == hasattr(network.network, "logit_terms")
            if added:
                total = torch.stack([term.reshape(6, -1).sum(1) for term in added.values()]).sum(0)
                torch.testing.assert_close(total, expected, atol=1e-12, rtol=1e-12)
            split = Split.by_role(layout)
            context = lab.fields_of(layout, rows_of(layout, batch, [0]), split.context.positions)
            candidates = lab.fields_of(layout, batch, split.candidates.positions)
            rows = lab.with_fields_of(
                layout, batch, rows_of(layout, batch, [0] * 6), split.context.positions
            )
            sides = Part(split.context, context), Part(split.candidates, candidates)
            scores = score_candidates(network, split, *sides)
            torch.testing.assert_close(scores, network(rows).detach(), atol=1e-10, rtol=1e-10)
            assert shares_context(network, split) == shares_context(network.network, split)


def test_an_auxiliary_loss_is_the_network_s(lab):
    network, _, batch = in_mean(lab, "finalnet")
    label = torch.tensor([1.0, 0.0, 1.0, 0.0, 1.0, 1.0], dtype=torch.float64)
    logit, loss = network.forward_with_auxiliary(batch, label)
    torch.testing.assert_close(logit, network(batch))
    torch.testing.assert_close(loss, network.network.forward_with_auxiliary(batch, label)[1])
    assert not isinstance(in_mean(lab, "fm")[0], HasAuxiliaryLoss)


def test_a_bundle_scores_and_says_so_after_saving_and_loading(tmp_path):
    bundle = mean_bundle()
    bundle.save(tmp_path / "b")
    again = Bundle.load(tmp_path / "b")
    assert again.score(ROWS) == pytest.approx(by_hand(bundle, ROWS), abs=1e-6)
    assert again.digest == bundle.digest
    assert again.network_share == bundle.network_share == SHARE
    sentence = "The model is the mean of the network (30%) and LR (70%), by the validation rows."
    assert again.mean_sentence == sentence
    assert sentence in again._repr_html_()
    assert "30% of the mean with LR" in repr(again)
    alone = mean_bundle(share=0.0)
    assert (alone.network_share, alone.mean_sentence[:24]) == (0.0, "The model is LR alone (t")
    plain = random_bundle(SMALL, SCHEMA, ROWS)
    assert (plain.network_share, plain.mean_sentence) == (1.0, None)
    assert "LR" not in repr(plain)


@pytest.mark.parametrize(
    "settings",
    [SMALL, FM(embedding_dim=3), FinalNet(embedding_dim=3, block1_hidden=(4,), block2_hidden=(4,))],
)
def test_explanations_add_up(settings):
    bundle = mean_bundle(settings)
    result = explain(bundle, ROWS)
    total = result.base + result.contributions.sum(1) + result.gap
    assert total == pytest.approx(by_hand(bundle, ROWS), abs=1e-5)
    assert np.abs(result.gap).max() < (1e-5 if isinstance(settings, FM) else 2.0)
    assert (result.method == "terms") == isinstance(settings, FM)
    terms = terms_of(bundle.network, bundle.encoder.transform(ROWS))
    assert not terms.added or terms.logit == pytest.approx(by_hand(bundle, ROWS), abs=1e-5)


def test_old_rows_score_to_the_bit_after_growth_and_new_values_are_new():
    bundle = mean_bundle()
    new = ROWS.with_columns(a=pl.Series(["s", "q", "q", "r", "s"]))
    grown, added = bundle.grow(new)
    assert added["a"] == 1
    assert np.array_equal(grown.score(ROWS), bundle.score(ROWS))
    assert grown.network_share == SHARE
    assert np.array_equal(grown.before_growth().score(ROWS), bundle.score(ROWS))


@pytest.mark.parametrize("settings", [SMALL, AutoInt(embedding_dim=4, layers=1, attention_dim=4)])
def test_a_warm_start_begins_where_a_mean_ended(settings):
    bundle = mean_bundle()
    layout = bundle.encoder.layout
    network = as_former(build_network(settings, layout, 2), layout, bundle.network)
    report = warm_start(network, bundle.encoder, bundle, labels=SCHEMA.labels)
    assert network_share(network) == SHARE
    assert torch.equal(network.lr.embedding.weight, bundle.network.lr.embedding.weight)
    assert (
        report.taken["network.embedding.weight"] == f"{layout.num_rows} of {layout.num_rows} rows"
    )
    if settings is SMALL:
        table = bundle.encoder.transform(ROWS)
        batch = table.batch(slice(0, len(table)))[0]
        assert torch.equal(network.eval()(batch), bundle.network(batch))
    optimizer = RunOptimizer(
        network, TrainingSettings(l2={"lr.embedding.weight": 0.1, "network.*": 0.2})
    )
    assert len(optimizer.parameters) == len(list(network.parameters()))


def test_l2_calls_the_parameters_of_a_mean_s_network_as_without_the_mean():
    network = mean_bundle().network
    weight = network.network.embedding.weight
    for pattern in ("embedding.weight", "network.embedding.weight"):
        optimizer = RunOptimizer(network, TrainingSettings(l2={pattern: 0.5}))
        network.zero_grad()
        optimizer.add_l2(None)
        torch.testing.assert_close(weight.grad, 0.5 * weight)
        assert [name for name, p in network.named_parameters() if p.grad is not None] == [
            "network.embedding.weight"
        ]
    with pytest.raises(
        ConfigError, match=r"'embeding.weight', which the model does not have: .*'embedding.weight'"
    ):
        RunOptimizer(network, TrainingSettings(l2={"embeding.weight": 0.5}))
    with pytest.raises(ConfigError, match="l2 names parameter 'network\\.embedding\\.weight'"):
        RunOptimizer(network.network, TrainingSettings(l2={"network.embedding.weight": 0.5}))


def test_a_recipe_with_a_fixed_l2_starts_from_its_own_mean(tmp_path):
    """The second training has the L2 of the first, whose names are those of the network alone."""
    sets = [
        "data.rows=600",
        "defaults=data",
        "model.embedding_dim=4",
        "training.epochs=1",
        "training.l2={'embedding.weight' = 0.01}",
    ]
    recipe = load_recipe("simulated/autoint-plus", sets)
    first = train_recipe(recipe, prepare_recipe(recipe, tmp_path))
    assert first.bundle.network_share < 1
    first.bundle.save(tmp_path / "b")
    again = load_recipe("simulated/autoint-plus", [*sets, f"warm_start={tmp_path / 'b'}"])
    second = train_recipe(again, prepare_recipe(again, tmp_path))
    assert second.recipe.training.l2 == {"embedding.weight": 0.01}
    assert second.bundle.network_share == first.bundle.network_share
    assert second.warm_start.fresh == {}


def test_a_warm_start_of_two_towers_takes_the_network_of_a_mean_alone():
    bundle = mean_bundle()
    layout = bundle.encoder.layout
    towers = as_former(
        NETWORKS["dssm"](embedding_dim=4, hidden=(4,), output_dim=3).build(layout),
        layout,
        bundle.network,
    )
    report = warm_start(towers, bundle.encoder, bundle, labels=SCHEMA.labels)
    assert "embedding.weight" in report.taken
    assert network_share(towers) == 1.0


def test_it_compiles_without_breaks(lab):
    for name in ("autoint+", "afm", "lr"):
        network, _, batch = in_mean(lab, name)
        compiled = torch.compile(network, fullgraph=True, backend="eager")
        torch.testing.assert_close(compiled(batch), network(batch), atol=1e-12, rtol=1e-12)
