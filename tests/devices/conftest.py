"""The device on which the tests of this folder run."""

from pathlib import Path

import pytest
import torch
from second_device import device_of_tests

from fieldwise.ops.devices import open_device

device_of_tests()  # before the first gradient of this process, at which PyTorch counts the devices

HERE = Path(__file__).parent
MISSING = "ignore:.* run as plain PyTorch on second, which takes more time:UserWarning"


def pytest_collection_modifyitems(items):
    """No kernel is for the second device, which every training there tells."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(MISSING))


@pytest.fixture(scope="session")
def name() -> str:
    """The device's name, as settings have it."""
    return device_of_tests()


@pytest.fixture(scope="session")
def device(name) -> torch.device:
    return open_device(name)
