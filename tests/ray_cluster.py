"""A Ray cluster of one machine, started once for all tests that need one."""

import os
import warnings
from collections.abc import Iterator

import pytest

ENVIRONMENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_worker_niceness": "0",  # else other tests on the machine come first
}


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    """The cluster's address; this process is connected to it."""
    ray = pytest.importorskip("ray", reason="needs Ray: pip install 'fieldwise[ray]'")
    from fieldwise.distributed.engine import WORKERS

    if ray.is_initialized():  # by another file of tests
        yield ray.get_runtime_context().gcs_address
        return
    os.environ |= ENVIRONMENT
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(
            address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
            object_store_memory=200_000_000, runtime_env={"env_vars": WORKERS},
        )  # fmt: skip
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()
