"""The device on which the tests of this folder run."""

import pytest
import torch
from second_device import device_of_tests

from fieldwise.ops.devices import open_device

device_of_tests()  # before the first gradient of this process, at which PyTorch counts the devices


@pytest.fixture(scope="session")
def name() -> str:
    """The device's name, as settings have it."""
    return device_of_tests()


@pytest.fixture(scope="session")
def device(name) -> torch.device:
    return open_device(name)
