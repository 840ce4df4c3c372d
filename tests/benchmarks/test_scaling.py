"""The model of cost: its bytes against real collectives and files, its seconds against cases worked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from benchmarks import torchrec_step
from benchmarks.processes import SHARED_OUT, Case, layout_of, random_table
from benchmarks.scaling.__main__ import MODELS, main
from benchmarks.scaling.measure import checkpoint_seconds
from benchmarks.scaling.model import Constants, Exchange, Job, Network, Shape, costs, distinct, exchanges, shape_of
from distributed import counted_bytes
from ranks import in_processes

from fieldwise.models import FM, IntTower

KINDS = {"all_to_all_single": "all-to-all", "all_reduce": "all-reduce", "all_gather_single": "all-gather"}
KNOWN = Constants(
    step={"m": (0.010, 0.001)}, fetched=1e-4, merged=2e-4, message=0.001, crowded=0.005, waits=0.0002, posted=0.0001,
    byte=1e-6, prepared=10.0, written=1_000.0, read=500.0,
)  # fmt: skip
TINY = Shape(tables=(2,), dense=3, parameters=1)


@pytest.fixture(scope="module")
def counted():
    return in_processes("distributed.counted_bytes", "steps", 2, 4)["steps"]


@pytest.mark.parametrize("name", counted_bytes.EVERY)
@pytest.mark.parametrize("processes", [2, 4])
def test_the_bytes_of_a_step_are_those_that_collectives_are_given(counted, name, processes):
    case = counted_bytes.EVERY[name]
    job = Job(
        shape=shape_of(case.model), ids=counted_bytes.VALUES * 39, batch=case.batch, processes=processes,
        sharded=case.settings["tables"] == "sharded",
    )  # fmt: skip
    expected = sorted((one.kind, round(one.given)) for one in exchanges(job))
    for rank in counted[processes]:
        assert sorted((KINDS[kind], given) for kind, given in rank[name]) == expected


@pytest.mark.parametrize("model", [FM(embedding_dim=16), IntTower(embedding_dim=4, hidden=(30, 20), head_dim=3)])
def test_a_checkpoint_has_the_bytes_of_its_tensors(model):
    case = Case(model=model, values=2_000, batch=64, settings=SHARED_OUT)
    octets, seconds = checkpoint_seconds(case)
    assert octets == pytest.approx(Job(shape=shape_of(model), ids=2_000 * 39).checkpoint_bytes, rel=0.01)
    assert seconds > 0


def test_an_encoded_row_has_the_bytes_of_its_arrays():
    job = Job(shape=TINY, ids=1)
    assert random_table(layout_of(3), 100).nbytes == 100 * job.row_bytes + 8  # and one offset of bags


@pytest.mark.parametrize("skew", [0.0, 1.05])
def test_distinct_values_are_those_of_draws(skew):
    draws, values = np.random.default_rng(0), 5_000
    share = np.arange(1, values + 1) ** -skew
    found = [len(np.unique(draws.choice(values, 3_000, p=share / share.sum()))) for _ in range(20)]
    assert distinct(3_000, values, skew) == pytest.approx(np.mean(found), rel=0.01)


def test_what_leaves_a_process():
    """Of 12 bytes for four processes three quarters; a ring sends 3/4 twice; what is gathered goes round thrice."""
    sent = {kind: Exchange(kind=kind, given=12, what="").sent(4) for kind in KINDS.values()}
    assert sent == {"all-to-all": 9, "all-reduce": 18, "all-gather": 36}
    waited = {kind: Exchange(kind=kind, given=12, what="").waited(4, 10, 1) for kind in KINDS.values()}
    assert waited == {"all-to-all": 10 + 3, "all-reduce": 6 * 11, "all-gather": 3 * 11}


def test_a_step_worked_by_hand():
    """Two processes with 5 of 10 rows and one field; every id is different, and half are another's."""
    job = Job(shape=TINY, ids=10**9, fields=1, batch=10, processes=2, rows=100, validation=20)
    cost = costs(job, "m", KNOWN)
    assert cost.compute == pytest.approx(0.010 + 5 * 0.001)
    assert cost.ids == pytest.approx(5 * 1e-4)
    # 16 bytes of counts, 5 ids of 4, rows and gradients of 2 floats: half leaves. 4 floats and 2 longs: all leave.
    assert cost.sent == pytest.approx(((16 + 20 + 40 + 40) / 2 + 16 + 16) * 1e-6)
    assert cost.waited == pytest.approx(6 * (0.001 + 0.0002))
    assert (cost.steps, cost.prepared, cost.read) == (10, 12, 100 * 8 / 500)
    assert (cost.epoch, cost.narrowest) == (cost.read, "read")
    faster = replace(cost, read=0.2)
    assert (faster.epoch, faster.narrowest) == (pytest.approx(10 * cost.step), "compute")
    assert job.checkpoint_bytes == 10**9 * (2 * 8 + 4) + 3 * 4 * 3
    assert cost.checkpoint == pytest.approx(job.checkpoint_bytes / 1_000)
    assert cost.collected == pytest.approx(8e9 / 2 * 1e-6)


def test_replicated_tables_update_what_others_read():
    job = Job(shape=TINY, ids=10, fields=3, batch=10, processes=2, sharded=False)
    assert costs(job, "m", KNOWN).ids == pytest.approx(5 * 3 * 2e-4)
    assert job.held_bytes == 10 * (2 * 8 + 4) == 2 * replace(job, sharded=True).held_bytes


def test_more_processes_than_cores_take_turns():
    job = Job(shape=TINY, ids=10**9, fields=1, batch=20, processes=4)
    four, two = costs(job, "m", KNOWN, cores=2), costs(job, "m", KNOWN, cores=4)
    assert four.compute == pytest.approx(2 * two.compute)
    assert (four.ids, four.sent) == (pytest.approx(2 * two.ids), pytest.approx(2 * two.sent))
    assert (two.waited, four.waited) == (pytest.approx(6 * 0.0012), pytest.approx(6 * 0.0052))  # measured as they are


def test_processes_of_a_machine_share_its_connection():
    """Eight processes each, 1 Gbit/s: 8 of 15 others are elsewhere, and all eight send at once."""
    assert Network(gigabits=1, each=8).byte(8) == 0
    assert Network(gigabits=1, each=8).byte(16) == pytest.approx(8 / 15 * 8 * 8e-9)
    assert Network(gigabits=1, each=1).byte(2) == pytest.approx(8e-9)


def test_one_process_sends_nothing():
    job = Job(shape=TINY, ids=10)
    assert exchanges(job) == []
    assert costs(job, "m", KNOWN).sent == costs(job, "m", KNOWN).waited == costs(job, "m", KNOWN).ids == 0


def test_predictions_are_printed_for_every_model(capsys):
    main(["predict", "--models", *MODELS, "--processes", "8", "512"])
    printed = capsys.readouterr().out
    assert printed.count("\n| 512 |") == len(MODELS)
    assert "checkpoint 132.0 GB" in printed  # of AutoInt+: 1e9 rows of 16 floats twice, and a number of Adagrad's


def test_a_comparison_without_the_other_says_what_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "torchrec" else object())
    monkeypatch.setattr("sys.argv", ["torchrec_step"])
    with pytest.raises(SystemExit, match="needs torchrec, not installed here"):
        torchrec_step.main()


def test_arguments_with_which_nothing_can_be_computed_are_one_sentence(capsys, subtests):
    for arguments, sentence in [
        ("predict --rows 0", "--rows must be a number of at least 1, found 0"),
        ("predict --rows nan", "--rows must be a number of at least 1, found nan"),
        ("predict --ids -5", "--ids must be a number of at least 1, found -5"),
        ("predict --ids 1e13", "--ids may be at most 2,147,483,647, since ids are 32-bit numbers, found 10,000,000,"),
        ("predict --gigabits 0", "--gigabits must be a number of at least 1e-09, found 0"),
        ("predict --each 0", "--each must be a number of at least 1, found 0"),
        ("predict --processes 0", "--processes must be from 1 to 65,536, a row of the batch for each, found 0"),
        ("predict --batch 4 --processes 5", "--processes must be from 1 to 4, a row of the batch for each, found 5"),
        ("check --processes 1000000", "this machine would run no more, found 1,000,000"),
        ("predict --models fn", "invalid choice: 'fn'"),
    ]:
        with subtests.test(arguments):
            with pytest.raises(SystemExit):
                main(arguments.split())
            printed = capsys.readouterr()
            assert printed.out == ""
            assert sentence in printed.err.splitlines()[-1]


def test_a_batch_is_never_divided_among_more_processes_than_it_has_rows(capsys):
    main(["predict", "--models", "fm", "--batch", "20"])
    rows = [line.split()[1] for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert rows[1:] == ["8", "16"]
