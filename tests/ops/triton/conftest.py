"""Kernels run on a GPU where there is one, else in Triton's interpreter, to be chosen before Triton is imported."""

import importlib.util
import os
import sys

import pytest
import torch

INSTALLED = importlib.util.find_spec("triton") is not None
LATE = not torch.cuda.is_available() and "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1"
if INSTALLED and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not said


@pytest.fixture(scope="session")
def installed() -> None:
    if not INSTALLED:
        pytest.skip("Triton is not installed (200 MB; PyTorch's CUDA wheels bring it): pip install 'fieldwise[triton]'")


@pytest.fixture(scope="session")
def device(installed) -> torch.device:
    """Where kernels run."""
    if LATE:
        pytest.skip("Triton was imported before its interpreter could be chosen: set TRITON_INTERPRET=1")
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture(scope="session")
def gpu(installed) -> torch.device:
    if not torch.cuda.is_available():
        pytest.skip("PyTorch sees no GPU")
    return torch.device("cuda")
