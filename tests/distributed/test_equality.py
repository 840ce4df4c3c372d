"""Two and three processes take the steps of one: same batches, losses, metrics and weights."""

import numpy as np
import pytest
from ranks import in_processes


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    asked = "double,unbroken@1,begun@4,gone_on@2,ended@3"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CHECKPOINTS", str(tmp_path_factory.mktemp("checkpoints")))
        return in_processes("distributed.shared_runs", asked, 1, 3)


def compared(found, relative, auc):
    (alone,) = found[1]
    for size, ranks in found.items():
        for name, expected in alone.items():
            own = [rank[name] for rank in ranks]
            assert len({one["digest"] for one in own}) == 1, f"{name}: the weights of {size} processes are equal"
            first = own[0]
            assert len(first["losses"]) == len(expected["losses"]) >= 14
            np.testing.assert_allclose(first["losses"], expected["losses"], rtol=relative, err_msg=f"{name}, {size}")
            if auc == 0 or not name.startswith(
                "inttower"
            ):  # whose biases before batch norm move by rounding, unless fixed
                assert abs(first["metrics"]["auc"] - expected["metrics"]["auc"]) <= auc, f"{name}, {size}"
            assert np.ptp(expected["losses"]) > 0.01, "the weights have moved"


def test_in_float64_the_processes_take_the_steps_of_one(found):
    compared(found["double"], relative=1e-10, auc=0)


def test_what_four_processes_saved_two_and_then_three_go_on_with(found):
    """The same rows in the same order."""
    expected = found["unbroken"][1][0]
    first, second, last = (found[name][size][0] for name, size in (("begun", 4), ("gone_on", 2), ("ended", 3)))
    losses = np.array(expected["losses"])
    np.testing.assert_allclose(first["losses"], losses[:5], rtol=1e-10)
    begins = [k for k in range(1, 5) if np.allclose(second["losses"], losses[k : k + 6], rtol=1e-10)]
    assert begins, "the second went on after a checkpoint of the first"
    done = 18 - len(last["losses"])
    assert 1 <= done < begins[0] + 6
    np.testing.assert_allclose(last["losses"], losses[done:], rtol=1e-10)
    assert last["metrics"]["auc"] == expected["metrics"]["auc"]
    for name, norm in expected["weights"].items():
        assert last["weights"][name] == pytest.approx(norm, rel=1e-9)


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one():
    result = in_processes("distributed.shared_runs", "double,single", 1, 2)
    compared(result["double"], relative=1e-10, auc=0)
    compared(result["single"], relative=1e-5, auc=1e-4)
