"""Whole trainings on the device: as on the CPU up to rounding, also broken off and resumed."""

import dataclasses

import numpy as np
import pytest
import torch
from second_device import SecondTensor

from fieldwise import (
    FM,
    AutoInt,
    Callback,
    Categorical,
    Encoder,
    IntTower,
    Label,
    Schema,
    TrainingSettings,
)
from fieldwise.models.build import build_network
from fieldwise.scoring.batches import score_batches
from fieldwise.testing import small_log
from fieldwise.training.checkpoint import CheckpointFolder, Checkpoints
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.step import Step

COMMON = {
    "batch_size": 16,
    "epochs": 1,
    "evaluations_per_epoch": 3,
    "patience": 9,
    "monitor": "logloss",
}
CASES = {
    "lazy adagrad": (
        FM(embedding_dim=4),
        {"optimizer": "adagrad", "embedding_update": "lazy", "clip_norm": 0.5},
    ),
    "unknown": (
        FM(embedding_dim=4),
        {"optimizer": "adagrad", "embedding_update": "lazy", "unknown_share": 1.0},
    ),
    "lazy rowwise": (
        FM(embedding_dim=4),
        {"optimizer": "rowwise_adagrad", "l2": {"*": 0.1}, "l2_rows": "touched"},
    ),
    "lazy adam": (FM(embedding_dim=4), {"optimizer": "adam", "embedding_update": "lazy"}),
    "averaged": (
        AutoInt(embedding_dim=4, attention_dropout=0.3),
        {"average": 0.9, "l2": {"*": 0.1}},
    ),
    "touched": (FM(embedding_dim=4), {"optimizer": "sgd", "l2": {"*": 0.1}, "l2_rows": "touched"}),
    "auxiliary": (
        IntTower(embedding_dim=4, hidden=(8, 8), dropout=0.2),
        {"start_at_base_rate": True},
    ),
    "windows": (FM(embedding_dim=4), {"shuffle_rows": 20}),
}


class Killed(BaseException):
    """What no code catches."""


class KillsAt(Callback):
    """Ends the run after so many steps."""

    def __init__(self, steps):
        self.left = steps

    def on_step(self, step):
        self.left -= 1
        if not self.left:
            raise Killed


class EveryStep(Checkpoints):
    """Waits for each write, so that every step has its checkpoint."""

    def due(self, *, evaluated, requested=False):
        self.settle()
        return super().due(evaluated=evaluated, requested=requested)


@pytest.fixture(scope="module")
def rows():
    fields = Categorical("user", role="user"), Categorical("item", role="item"), Categorical("hour")
    frame = small_log(120)
    encoder = Encoder.fit(frame[:90], Schema(fields=fields, label=Label("click")))
    y = frame["click"].to_numpy().astype(np.float32)
    weight = np.random.default_rng(0).gamma(2.0, size=90).astype(np.float32)
    train = dataclasses.replace(encoder.transform(frame[:90], y=y[:90]), weight=weight)
    return train, encoder.transform(frame[90:], y=y[90:])


def trained(rows, case, device, kept=None, progress=None):
    model, settings = CASES[case]
    network = build_network(model, rows[0].layout, 3)
    result = Training(
        network=network, train=rows[0], valid=rows[1], objective=Objective(), seed=3,
        callbacks=(progress or Callback(),),
        settings=TrainingSettings(**{**COMMON, **settings, "device": device}), checkpoints=kept,
    ).run()  # fmt: skip
    return network, result


@pytest.mark.parametrize("case", CASES)
def test_a_training_equals_the_cpus_and_goes_on_from_its_checkpoint(
    rows, case, name, device, tmp_path
):
    here, expected = trained(rows, case, "cpu")
    before = torch.get_rng_state()
    there, result = trained(rows, case, name)
    assert torch.equal(torch.get_rng_state(), before)
    assert {p.device for p in there.parameters()} == {device}
    if case != "unknown":  # drawn on the device
        for one, other in zip(result.evaluations, expected.evaluations, strict=True):
            assert one.train_loss == pytest.approx(other.train_loss, rel=1e-4)
            assert one.metrics["logloss"] == pytest.approx(other.metrics["logloss"], rel=1e-3)
        scores = [score_batches(network, rows[1].batches(7)) for network in (there, here)]
        np.testing.assert_allclose(scores[0], scores[1], atol=1e-3)

    def kept():
        unfinished = CheckpointFolder(folder=tmp_path, note=lambda _: None)
        return EveryStep(unfinished=unfinished, name="first", minutes=1e-9, about=dict)

    with pytest.raises(Killed):
        trained(rows, case, name, kept(), KillsAt(4))
    resumed, again = trained(rows, case, name, kept())
    off = 0.0 if device.type == "second" else 1e-4  # some sums on a GPU have no fixed order
    assert [one.train_loss for one in again.evaluations] == pytest.approx(
        [one.train_loss for one in result.evaluations], rel=off
    )
    for key, value in there.state_dict().items():
        torch.testing.assert_close(resumed.state_dict()[key], value, rtol=off, atol=off, msg=key)


def test_only_the_rows_of_a_batch_move(rows, name, monkeypatch):
    """A lazily updated table has no gradient of its size on the device."""
    sizes = []
    from fieldwise.ops import rows as module

    real = module.update_rows_plain_
    monkeypatch.setattr(
        module, "update_rows_plain_", lambda *a: (sizes.append(a[3].shape[0]), real(*a))
    )
    trained(rows, "lazy adam", name)
    assert sizes
    assert max(sizes) <= 16 * rows[0].ids.shape[1]


@pytest.mark.parametrize("case", ["lazy rowwise", "lazy adam", "unknown"])
def test_a_step_waits_for_no_number_of_the_device(rows, case, name, device, monkeypatch):
    if device.type != "second":
        pytest.skip("numbers that are read are counted on the second device")
    model, settings = CASES[case]
    network = build_network(model, rows[0].layout, 3).to(device)
    step = Step(
        network, rows[0], TrainingSettings(**COMMON, **settings, device=name), Objective(), 3
    )
    batch, y = (moved.to(device) for moved in rows[0].batch(slice(0, 16)))
    step(batch, y, None)  # makes the optimizer's states
    read, real = [], SecondTensor.__torch_dispatch__

    def watched(function, types, args=(), kwargs=None):
        read.append(function._schema.name)
        return real(function, types, args, kwargs)

    monkeypatch.setattr(SecondTensor, "__torch_dispatch__", staticmethod(watched))
    step(batch, y, None)
    assert "aten::index_add_" in read
    assert not {
        "aten::_local_scalar_dense",
        "aten::equal",
        "aten::nonzero",
        "aten::_unique2",
        "aten::unique_consecutive",
    } & set(read)


def test_bfloat16_multiplies_matrices_in_16_bits_there(rows, name, device):
    """The logits are those of 16 bits: near those of 32, and not them."""
    model = AutoInt(embedding_dim=4, attention_dim=8)
    losses = {}
    for precision in ("float32", "bfloat16"):
        settings = TrainingSettings(**COMMON, precision=precision, device=name)
        network = build_network(model, rows[0].layout, 3).to(device)
        step, batch = (
            Step(network, rows[0], settings, Objective(), 0),
            rows[0].batch(slice(0, 40))[0].to(device),
        )
        with torch.no_grad():
            losses[precision] = step.forward(batch, torch.zeros(40, 1, device=device))[0].cpu()
    assert losses["bfloat16"].dtype == torch.float32
    assert not torch.equal(losses["bfloat16"], losses["float32"])
    torch.testing.assert_close(losses["bfloat16"], losses["float32"], atol=1e-2, rtol=1e-1)
