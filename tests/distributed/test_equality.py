"""Two and three processes take the steps of one: same batches, losses, metrics and weights."""

from pathlib import Path

import numpy as np
import pytest
from distributed.limited import VALUES
from ranks import in_processes


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    asked = "double,sharded,drawn,unbroken@1,begun@4,gone_on@2,ended@3"
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CHECKPOINTS", str(tmp_path_factory.mktemp("checkpoints")))
        return in_processes("distributed.shared_runs", asked, 1, 3)


def compared(found, relative, auc, *, whole=True):
    (alone,) = found[1]
    for size, ranks in found.items():
        for name, expected in alone.items():
            own = [rank[name] for rank in ranks]
            if whole:
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


def test_sharded_tables_take_the_steps_of_one_table(found):
    compared(found["sharded"], relative=1e-10, auc=0, whole=False)


def test_no_process_needs_a_whole_table_to_draw_its_rows(found):
    assert found["drawn"] == {1: [[]], 3: [[0.0] * 4] * 3}


def test_what_four_processes_saved_two_and_then_three_go_on_with(found):
    """The same rows in the same order; tables as a whole, and sharded anew."""
    for kind, expected in found["unbroken"][1][0].items():
        first, second, last = (
            found[name][size][0][kind] for name, size in (("begun", 4), ("gone_on", 2), ("ended", 3))
        )
        losses = np.array(expected["losses"])
        np.testing.assert_allclose(first["losses"], losses[:5], rtol=1e-10)
        begins = [k for k in range(1, 5) if np.allclose(second["losses"], losses[k : k + 6], rtol=1e-10)]
        assert begins, "the second went on after a checkpoint of the first"
        done = 18 - len(last["losses"])
        assert 1 <= done < begins[0] + 6
        assert kind == "replicated" or done > begins[0], "it went on after a checkpoint of the second"
        np.testing.assert_allclose(last["losses"], losses[done:], rtol=1e-10)
        assert last["metrics"]["auc"] == expected["metrics"]["auc"]
        for name, norm in expected["weights"].items():
            assert last["weights"][name] == pytest.approx(norm, rel=1e-9)


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one():
    found = in_processes("distributed.shared_runs", "double,sharded,single", 1, 2)
    compared(found["double"], relative=1e-10, auc=0)
    compared(found["sharded"], relative=1e-10, auc=0, whole=False)
    compared(found["single"], relative=1e-5, auc=1e-4)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_two_processes_train_what_does_not_fit_in_the_memory_of_one():
    found = in_processes("distributed.limited", "trained", 1, 2)["trained"]
    (alone,) = found[1]
    assert "can't allocate memory" in alone
    first, second = found[2]
    assert first == second == {"rows": VALUES, "loss": pytest.approx(np.log(2), abs=0.05), "reserved": True}
