"""Two and three processes take the steps of one: same batches, losses, metrics and weights."""

import numpy as np
import pytest
from ranks import in_processes


def compared(found, relative, auc):
    (alone,) = found[1]
    for size, ranks in found.items():
        for name, expected in alone.items():
            own = [rank[name] for rank in ranks]
            assert len({one["digest"] for one in own}) == 1, f"{name}: the weights of {size} processes are equal"
            first = own[0]
            assert len(first["losses"]) == len(expected["losses"]) == 18
            np.testing.assert_allclose(first["losses"], expected["losses"], rtol=relative, err_msg=f"{name}, {size}")
            assert abs(first["metrics"]["auc"] - expected["metrics"]["auc"]) <= auc, f"{name}, {size}"
            assert np.ptp(expected["losses"]) > 0.01, "the weights have moved"


def test_in_float64_the_processes_take_the_steps_of_one():
    compared(in_processes("distributed.shared_runs", "double", 1, 2, 3)["double"], relative=1e-10, auc=0)


@pytest.mark.slow
def test_in_float32_the_processes_take_the_steps_of_one():
    compared(in_processes("distributed.shared_runs", "single", 1, 2)["single"], relative=1e-5, auc=1e-4)
