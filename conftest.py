"""Fixtures that the tests of every folder and the examples in docstrings share."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

gc.disable()  # until all is collected: loading makes objects that stay
# Before PyTorch is imported, and for every process that a test starts.
os.environ["OMP_NUM_THREADS"] = (
    os.environ.get("OMP_NUM_THREADS") or "1"
)  # an empty value means an unset one

import pytest
import torch
from hypothesis import settings
from serving.servers import Server, postgres_server, redis_server

# Machines are shared: an example that takes long is no failure.
settings.register_profile("shared", deadline=None, max_examples=40)
settings.load_profile("shared")


def pytest_collection_finish() -> None:
    """What was loaded stays: the garbage collector need not walk it again for every test that makes many objects."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """One thread a worker: small tensors gain nothing from more. A test about threads sets its own number."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _examples_of_a_user(doctest_namespace: dict[str, object]) -> None:
    """The classes of a docstring's example belong to no module of fieldwise, as a user's own."""
    doctest_namespace["__name__"] = "__main__"


@pytest.fixture(scope="session", autouse=True)
def _cache_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the user's own cache of prepared data."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIELDWISE_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real data sets, named by FIELDWISE_DATA or beside the project; tests skip without it."""
    named = os.environ.get("FIELDWISE_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[1] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(
            f"no real data at {folder.name!r}: set FIELDWISE_DATA to a folder of public data sets"
        )
    return folder


redis = pytest.fixture(scope="session")(redis_server)
postgres = pytest.fixture(scope="session")(postgres_server)


@pytest.fixture(params=["redis", "postgres"])
def server(request: pytest.FixtureRequest) -> Server:
    """Each server of a store in turn."""
    found: Server = request.getfixturevalue(request.param)
    return found
