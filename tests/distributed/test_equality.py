"""Two and three processes take the steps of one; what they exchange, and how one's failure reaches the others."""

import numpy as np
import pytest
from ranks import in_processes


def in_one_and_three(tmp_path_factory, *asked):
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CHECKPOINTS", str(tmp_path_factory.mktemp("checkpoints")))
        return in_processes("distributed.shared_runs", ",".join(asked), 1, 3)


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    names = ("exchanged", "killed", "different", "unsuitable", "interrupted_late", "half")
    return in_one_and_three(tmp_path_factory, *(f"{name}@3" for name in names))


@pytest.fixture(scope="module")
def stepped(tmp_path_factory):
    return in_one_and_three(
        tmp_path_factory, "double", "unbroken@1", "begun@4", "gone_on@2", "ended@3"
    )


def compared(found, relative, auc):
    (alone,) = found[1]
    for size, ranks in found.items():
        for name, expected in alone.items():
            own = [rank[name] for rank in ranks]
            assert len({one["digest"] for one in own}) == 1, (
                f"{name}: the weights of {size} processes are equal"
            )
            first = own[0]
            assert len(first["losses"]) == len(expected["losses"]) >= 7
            np.testing.assert_allclose(
                first["losses"], expected["losses"], rtol=relative, err_msg=f"{name}, {size}"
            )
            assert abs(first["metrics"]["auc"] - expected["metrics"]["auc"]) <= auc, (
                f"{name}, {size}"
            )
            assert np.ptp(expected["losses"]) > 0.01, "the weights have moved"


@pytest.mark.slow
def test_in_float64_the_processes_take_the_steps_of_one(stepped):
    compared(stepped["double"], relative=1e-10, auc=0)


@pytest.mark.slow
def test_what_four_processes_saved_two_and_then_three_go_on_with(stepped):
    """The same rows in the same order."""
    expected = stepped["unbroken"][1][0]
    first, second, last = (
        stepped[name][size][0] for name, size in (("begun", 4), ("gone_on", 2), ("ended", 3))
    )
    losses = np.array(expected["losses"])
    np.testing.assert_allclose(first["losses"], losses[:5], rtol=1e-10)
    begins = [
        k for k in range(1, 5) if np.allclose(second["losses"], losses[k : k + 6], rtol=1e-10)
    ]
    assert begins, "the second went on after a checkpoint of the first"
    done = 18 - len(last["losses"])
    assert 1 <= done < begins[0] + 6
    np.testing.assert_allclose(last["losses"], losses[done:], rtol=1e-10)
    assert last["metrics"]["auc"] == expected["metrics"]["auc"]
    for name, norm in expected["weights"].items():
        assert last["weights"][name] == pytest.approx(norm, rel=1e-9)


def test_values_and_rows_go_from_process_to_process(found):
    rows = [[1.0, 1.0], [2.0, 2.0], [2.0, 2.0]]
    every = [[], [1], [2, 2]]
    assert found["exchanged"][3] == [[every, rows, 1], [every, rows, None], [every, rows, None]]


def test_a_killed_process_ends_the_others(found):
    *others, last = found["killed"][3]
    assert last is None
    for sentence in others:
        assert "another of the 3 processes has ended" in sentence
        assert "the same command resumes from the last checkpoint" in sentence


def test_processes_with_other_settings_or_rows_are_named(found):
    for sentence in found["different"][3]:
        assert sentence == (
            "all 3 processes must train with the same settings, rows and versions, but process 1 has "
            "training.learning_rate 0.01 where process 0 has 0.001, and 1 more differ: start all of them with the same "
            "recipe, files and version"
        )


def test_a_layer_that_cannot_see_the_whole_batch_is_refused(found):
    for sentence in found["unsuitable"][3]:
        assert "Sequential cannot be trained as with one: 1 is a BatchNorm2d" in sentence


def test_rows_of_16_bits_are_normalized_over_all_processes(found):
    assert found["half"][3] == [["torch.float32", pytest.approx(0.1)]] * 3


def test_an_interrupt_in_a_trainings_last_evaluation_ends_the_one_that_follows(found):
    assert found["interrupted_late"][3] == [["epochs", "interrupted", 0]] * 3


@pytest.mark.slow
def test_two_processes_take_the_steps_of_one():
    result = in_processes("distributed.shared_runs", "double,single", 1, 2)
    compared(result["double"], relative=1e-10, auc=0)
    compared(result["single"], relative=1e-5, auc=1e-4)
