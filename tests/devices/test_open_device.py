"""The devices that a name can mean here, and one sentence for all others."""

from types import SimpleNamespace

import pytest
import torch

from fieldwise import ConfigError, TrainingSettings
from fieldwise.ops.devices import CPU, device_of, get_rng_state, kept_rng, open_device, wait_for


def test_auto_is_the_best_there_is(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    assert open_device("auto") == CPU
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.mps, "is_available", lambda: True)
    assert open_device("auto") == torch.device("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    assert open_device("auto") == torch.device("cuda:1")
    assert open_device("cuda:0") == torch.device("cuda:0")
    with pytest.raises(
        ConfigError,
        match=r"'cuda:2' does not exist: cuda has the numbers 0 to 1 here.*cuda:0, cuda:1",
    ):
        open_device("cuda:2")


@pytest.mark.parametrize("wrong", ["gpu", "cuda:999", "meta", "cpu:1"])
def test_a_device_that_does_not_exist_is_one_sentence(wrong):
    with pytest.raises(
        ConfigError, match=f"device.*found '{wrong}'|'{wrong}' (cannot be used|does not)"
    ) as caught:
        open_device(wrong)
    assert "choose one that this machine has: cpu" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_names_that_no_device_has():
    for wrong in ("", "cuda:", "cuda:x", "cpu cuda", "CUDA"):
        with pytest.raises(
            ConfigError, match="device must be auto, cpu, cuda, cuda:N or mps, found"
        ):
            TrainingSettings(device=wrong)


def test_the_device_of_a_network_and_its_random_states(device):
    assert device_of(torch.nn.Linear(1, 1).to(device)) == device
    assert device_of(torch.nn.Flatten()) == CPU
    before, there = torch.get_rng_state(), get_rng_state(device)
    with kept_rng(device):
        torch.manual_seed(3)
        torch.rand(2, device=device)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(get_rng_state(device), there)


def test_what_is_waited_for_is_the_device_named(monkeypatch):
    waited = []
    module = SimpleNamespace(synchronize=lambda *devices: waited.append(devices))
    monkeypatch.setattr(torch, "get_device_module", lambda _: module)
    for name in ("cpu", "cuda:1", "mps"):
        wait_for(torch.device(name))
    assert waited == [(torch.device("cuda:1"),), ()]
