"""A run that is broken off anywhere and goes on from its checkpoint equals one that never was."""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import signal
import threading
from types import SimpleNamespace

import pytest
import torch
from counted_steps import Ends

from fieldwise import (
    FM,
    AutoInt,
    Callback,
    ConfigError,
    DataError,
    IntTower,
    TrainingError,
    TrainingSettings,
)
from fieldwise.models.build import build_network
from fieldwise.training.checkpoint import CHECKPOINT, CheckpointFolder, Checkpoints
from fieldwise.training.fit import Training
from fieldwise.training.objective import Objective
from fieldwise.training.signals import SignalGuard

ALWAYS = 1e-9  # minutes: every step is due
COMMON = {
    "batch_size": 16,
    "epochs": 3,
    "evaluations_per_epoch": 3,
    "patience": 12,
    "monitor": "logloss",
}
CASES = {
    "fm-lazy-adagrad": (
        FM(embedding_dim=4),
        {
            "optimizer": "adagrad",
            "embedding_update": "lazy",
            "learning_rate": 0.1,
            "unknown_share": 1.0,
        },
    ),
    "fm-lazy-adam-l2-of-all-rows": (
        FM(embedding_dim=4),
        {
            "embedding_update": "lazy",
            "l2": {"embedding.weight": 0.01, "first_order.embedding.weight": 0.002},
            "learning_rate": 0.02,
            "unknown_share": 1.0,
        },
    ),
    "autoint-adam-average-dropout": (
        AutoInt(embedding_dim=4, attention_dropout=0.3),
        {"optimizer": "adam", "average": 0.9, "learning_rate": 0.02, "plateau_factor": 0.5},
    ),
    "inttower-contrastive": (
        IntTower(embedding_dim=4, hidden=(8, 8), dropout=0.2),
        {"learning_rate": 0.02},
    ),
    "fm-listwise": (
        FM(embedding_dim=4),
        {"loss": "listwise", "learning_rate": 0.02, "monitor": "gauc"},
    ),
    "fm-sgd": (FM(embedding_dim=4), {"optimizer": "sgd", "learning_rate": 0.05}),
}


class Killed(BaseException):
    """What no code catches, as a kill would end a run; a test does."""


class Kills(Ends):
    """As a kill, unless it is said how."""

    def __init__(self, step=None, evaluation=None, how=Killed):
        super().__init__(step, evaluation, how)


class EveryStep(Checkpoints):
    """Waits for each write, so that every step has its checkpoint, also where copying takes long."""

    def due(self, *, evaluated, requested=False):
        self.settle()
        self._copying = 0.0 if self.minutes == ALWAYS else self._copying
        return super().due(evaluated=evaluated, requested=requested)


def checkpoints(folder, *, about=None, note=lambda _: None, minutes=ALWAYS, kind=EveryStep, **more):
    place = CheckpointFolder(folder=folder, note=note)
    return kind(
        unfinished=place,
        name="first",
        minutes=minutes,
        about=lambda: about or {"rows": "these"},
        **more,
    )


def trained(tables, case="fm-lazy-adagrad", kept=None, progress=None, **changed):
    model, settings = CASES[case]
    network = build_network(model, tables.layout, 3)
    result = Training(
        network=network, train=tables.train, valid=tables.valid, objective=Objective(), seed=3,
        train_group=tables.train.ids[:, 0], valid_group=tables.valid.ids[:, 0],
        settings=TrainingSettings(**{**COMMON, **settings, **changed}), checkpoints=kept,
        callbacks=(progress or Callback(),),
    ).run()  # fmt: skip
    return network, result


def forge(folder, change):
    """Change the manifests of all checkpoints; their checksums are right."""
    for path in folder.rglob("checkpoint.json"):
        manifest = {
            key: value for key, value in json.loads(path.read_text()).items() if key != "sha256"
        }
        manifest |= change(manifest)
        digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        path.write_text(json.dumps(manifest | {"sha256": digest}))


def facts(result):
    """All of a result but durations."""
    evaluations = [dataclasses.replace(one, seconds=0.0) for one in result.evaluations]
    return evaluations, result.evaluations.index(result.best), result.epochs, result.stopped


def assert_equal(found, expected):
    assert facts(found[1]) == facts(expected[1])
    state = found[0].state_dict()
    for name, value in expected[0].state_dict().items():
        assert torch.equal(state[name], value), name


@pytest.fixture(scope="module")
def expected(tables):
    """The first case, never interrupted."""
    return trained(tables)


@pytest.fixture(scope="module")
def broken(tables, tmp_path_factory):
    """The folder of the first case, killed at step 12 of 24, with checkpoints of the two steps before."""
    folder = tmp_path_factory.mktemp("killed") / "run"
    with pytest.raises(Killed):
        trained(tables, kept=checkpoints(folder), progress=Kills(step=12))
    return folder


@pytest.fixture
def folder(broken, tmp_path):
    """A copy of `broken`."""
    return shutil.copytree(broken, tmp_path / "run")


# Of each pair of kills the first, and the second counted from where the run resumed; an epoch has 8
# steps.
@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("fm-lazy-adagrad", 1, 1),
        ("fm-lazy-adagrad", 11, 3),
        ("fm-lazy-adam-l2-of-all-rows", 11, 3),
        ("autoint-adam-average-dropout", 7, 2),
        ("autoint-adam-average-dropout", 15, 9),
        ("inttower-contrastive", 8, 8),
        ("fm-sgd", 11, 3),
        ("fm-listwise", 7, 2),
    ],
)
def test_a_run_that_is_killed_twice_equals_one_that_is_not(tables, tmp_path, case, first, second):
    for step in (first, second):
        with pytest.raises(Killed):
            trained(tables, case, checkpoints(tmp_path, kind=Checkpoints), Kills(step=step))
    said = []
    assert_equal(
        trained(tables, case, checkpoints(tmp_path, note=said.append)), trained(tables, case)
    )
    if first > 1:
        assert len(said) == 1
        assert "resumes the unfinished run in" in said[0]


def test_a_run_in_windows_that_is_killed_equals_one_that_is_not(bagged, tmp_path):
    """Windows of 37 rows and batches of 16: their borders are apart."""
    case = "autoint-adam-average-dropout"
    expected = trained(bagged, case, shuffle_rows=37)
    assert facts(expected[1]) != facts(trained(bagged, case)[1]), "another order"
    for first, second, how in [(3, 7, KeyboardInterrupt), (6, 9, Killed)]:
        folder = tmp_path / f"{first}-{second}"
        for step in (first, second):
            with pytest.raises(Killed) if how is Killed else contextlib.nullcontext():
                trained(
                    bagged, case, checkpoints(folder), Kills(step=step, how=how), shuffle_rows=37
                )
        assert_equal(trained(bagged, case, checkpoints(folder), shuffle_rows=37), expected)


def test_a_run_killed_during_an_evaluation(tables, tmp_path, expected):
    for evaluation in (1, 5):
        folder = tmp_path / str(evaluation)
        with pytest.raises(Killed):
            trained(tables, kept=checkpoints(folder), progress=Kills(evaluation=evaluation))
        assert_equal(trained(tables, kept=checkpoints(folder)), expected)


@pytest.mark.parametrize("step", [1, 11])
def test_ctrl_c_writes_a_checkpoint_and_keeps_the_best_so_far(tables, tmp_path, expected, step):
    broken = trained(
        tables,
        kept=checkpoints(tmp_path, minutes=99),
        progress=Kills(step=step, how=KeyboardInterrupt),
    )
    assert broken[1].stopped == "interrupted"
    if step == 1:
        assert len(broken[1].evaluations) == 1, (
            "evaluated for the bundle, but not part of what is resumed"
        )
    assert (tmp_path / "first-training").is_dir()
    assert_equal(trained(tables, kept=checkpoints(tmp_path)), expected)


def test_a_finished_training_is_restored_without_a_step(tables, tmp_path, expected):
    assert_equal(trained(tables, kept=checkpoints(tmp_path, minutes=99, always=True)), expected)
    again = Kills(step=1)
    assert_equal(trained(tables, kept=checkpoints(tmp_path), progress=again), expected)
    assert again.steps == 0


def test_the_second_training_resumes_too(tables, tmp_path):
    model, settings = CASES["autoint-adam-average-dropout"]
    given = TrainingSettings(**{**COMMON, **settings})
    first = trained(tables, "autoint-adam-average-dropout")[1]

    def again(kept, progress):
        network = build_network(model, tables.layout, 3)
        more = {
            "settings": given,
            "objective": Objective(),
            "seed": 3,
            "callbacks": (progress,),
            "checkpoints": kept,
        }
        return network, Training(network, tables.train, None, repeats=first, **more).run()

    with pytest.raises(KeyboardInterrupt):
        again(checkpoints(tmp_path), Kills(step=5, how=KeyboardInterrupt))
    assert_equal(again(checkpoints(tmp_path), Callback()), again(None, Callback()))


def test_the_last_two_are_kept(folder):
    results = [CHECKPOINT.open(folder / "first-training" / str(slot)).about for slot in range(2)]
    assert sorted(p.name for p in (folder / "first-training").iterdir()) == ["0", "1"]
    assert abs(results[0]["number"] - results[1]["number"]) == 1
    assert not [p for p in folder.rglob("*") if p.suffix not in {"", ".json", ".safetensors"}], (
        "only data"
    )


def test_a_damaged_checkpoint_gives_way_to_the_one_before(tables, folder, expected):
    newest = max(folder.glob("first-training/*"), key=lambda s: CHECKPOINT.open(s).about["number"])
    path = next(newest.glob("*.safetensors"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"a checkpoint is damaged, and is passed over: .*match"):
        assert_equal(trained(tables, kept=checkpoints(folder)), expected)


def test_two_damaged_checkpoints_begin_anew(folder):
    (folder / "first-training" / "0" / "checkpoint.json").write_text("{")
    (folder / "first-training" / "1" / "checkpoint.json").write_text('{"format": 1, "files": 3}')
    with pytest.warns(
        UserWarning, match="a checkpoint is damaged|no whole checkpoint is left"
    ) as told:
        assert checkpoints(folder).newest() is None
    assert ["a checkpoint is damaged" in str(one.message) for one in told] == [True, True, False]
    assert str(told[-1].message) == "no whole checkpoint is left: training begins anew"


def test_a_forged_checkpoint_is_damaged(broken, tmp_path, subtests):
    """Its checksum is right, its contents are not."""
    for number, forged in enumerate(({"number": "x"}, {"number": None}, {"about": 3}, {"run": []})):
        folder = shutil.copytree(broken, tmp_path / str(number))
        forge(folder, lambda _, forged=forged: forged)
        with (
            subtests.test(forged=forged),
            pytest.warns(UserWarning, match="is damaged|no whole checkpoint") as told,
        ):
            assert checkpoints(folder).newest() is None
        assert "must be a whole number" in str(told[0].message) or "must describe its run" in str(
            told[0].message
        )


def test_a_checkpoint_with_a_forged_run_is_one_sentence(tables, broken, tmp_path, subtests):
    sentence = r"checkpoint is not one of this run .*: remove .* to train from the start"
    for name, value in [
        ("epoch", "x"), ("step", None), ("rates", ["x"]), ("history", [3]), ("best", 99), ("seconds", []),
        ("stopped", 1),
    ]:  # fmt: skip
        folder = shutil.copytree(broken, tmp_path / name)
        forge(
            folder,
            lambda manifest, name=name, value=value: {"run": manifest["run"] | {name: value}},
        )
        with subtests.test(name=name), pytest.raises(DataError, match=sentence):
            trained(tables, kept=checkpoints(folder))


def test_a_checkpoint_of_a_newer_format_is_an_error_with_a_remedy(folder):
    forge(folder, lambda _: {"format": 99})
    with pytest.raises(
        DataError, match=r"has format 99.*install a newer fieldwise, or remove .* to train from"
    ):
        checkpoints(folder).newest()


def test_what_differs_from_the_unfinished_run_is_named(folder):
    about = {
        "training": {"learning_rate": 0.1, "l2": {}},
        "rows": {"train": "a"},
        "versions": {"torch": "1"},
    }
    forge(folder, lambda _: {"about": about})
    other = {
        **about,
        "training": {"learning_rate": 0.2, "l2": {"w": 1.0}},
        "rows": {"train": "b"},
        "seed": 4,
    }
    with pytest.raises(ConfigError) as told:
        checkpoints(folder, about=other).newest()
    assert "training.learning_rate was 0.1 and is 0.2" in str(told.value)
    assert "training.l2.w was not set and is 1.0" in str(told.value)
    assert "and 1 more" in str(told.value)
    assert str(told.value).endswith("or remove that folder to train from the start")
    assert checkpoints(folder, about=about).newest()[0]["step"] == 3


def test_a_checkpoint_that_cannot_be_written_is_a_warning_and_the_run_goes_on(
    tables, tmp_path, expected
):
    (tmp_path / "first-training").write_text("in the way")
    with pytest.warns(
        UserWarning, match="a checkpoint could not be written, and training goes on without it: "
    ):
        assert_equal(trained(tables, kept=checkpoints(tmp_path)), expected)


def test_a_run_that_diverges_leaves_nothing_to_resume(tables, tmp_path):
    class Diverges(Callback):
        def on_evaluation(self, evaluation, better):
            raise TrainingError("the loss must stay finite")

    with pytest.raises(TrainingError):
        trained(tables, kept=checkpoints(tmp_path), progress=Diverges())
    assert not CheckpointFolder(folder=tmp_path).exists()


def test_no_minutes_no_checkpoint(tables, tmp_path):
    trained(
        tables,
        kept=checkpoints(tmp_path / "a", minutes=0),
        progress=Kills(step=9, how=KeyboardInterrupt),
    )
    assert not (tmp_path / "a").exists()


def test_when_a_checkpoint_is_due(tmp_path):
    kept = checkpoints(tmp_path, minutes=10)
    now = kept._last
    for seconds, evaluated, copying, due in [
        (599, False, 0.0, False), (601, False, 0.0, True), (59, True, 0.0, False), (61, True, 0.0, True),
        (61, True, 2.0, False), (101, True, 2.0, True), (601, False, 15.0, False),
    ]:  # fmt: skip
        kept._last, kept._copying = now - seconds, copying
        assert kept.due(evaluated=evaluated) == due, (seconds, evaluated, copying)
    assert kept.due(evaluated=False, requested=True)


@pytest.mark.skipif(not hasattr(signal, "SIGUSR1"), reason="this system has no SIGUSR1")
def test_sigusr1_writes_one_now(tables, tmp_path, expected):
    class Asks(Kills):
        def on_step(self, step):
            super().on_step(step)
            if self.steps == 4:
                os.kill(os.getpid(), signal.SIGUSR1)

    said = []
    with pytest.raises(Killed):
        trained(
            tables, kept=checkpoints(tmp_path, minutes=99, note=said.append), progress=Asks(step=6)
        )
    run = CHECKPOINT.open(tmp_path / "first-training" / "0").about["run"]
    assert run["step"] == 4
    assert said == [
        f"wrote the checkpoint that SIGUSR1 asked for, of epoch {run['position']:.4g}, to {tmp_path}"
    ]
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    assert_equal(trained(tables, kept=checkpoints(tmp_path)), expected)


def test_ctrl_c_within_a_step_acts_after_it():
    guard, order = SignalGuard(), []

    def step(signals):
        with guard:
            for _ in range(signals):
                os.kill(os.getpid(), signal.SIGINT)
            order.append(signals)

    with guard.installed():
        with pytest.raises(KeyboardInterrupt):
            step(1)
        assert guard.whole
        with pytest.raises(KeyboardInterrupt):
            step(2)
        assert not guard.whole, "the second one acts at once"
    assert order == [1]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_a_thread_no_signal_is_touched(tables, tmp_path, expected):
    before, result = signal.getsignal(signal.SIGINT), []
    thread = threading.Thread(
        target=lambda: result.append(trained(tables, kept=checkpoints(tmp_path)))
    )
    thread.start()
    thread.join()
    assert_equal(result[0], expected)
    assert signal.getsignal(signal.SIGINT) is before


def test_one_training_at_a_time_uses_a_folder(tmp_path):
    place = CheckpointFolder.beside(tmp_path / "bundle")
    assert place.folder == tmp_path / ".bundle.unfinished"
    with place.claimed():
        with pytest.raises(DataError, match="only one training at a time"), place.claimed():
            pass
        assert place.folder.is_dir()
    assert not place.folder.exists(), "nothing is left of a run without a checkpoint"


@pytest.mark.parametrize(
    "noted", [[signal.SIGTERM], []], ids=["the one with the signal", "another"]
)
def test_an_agreed_signal_acts_once_in_every_process_that_trains(noted):
    handled = []

    def handler(number, _):
        handled.append(number)
        raise KeyboardInterrupt

    sync = SimpleNamespace(noted=[], agreed=False)
    guard = SignalGuard(sync, sync.noted)
    guard._handlers[signal.SIGTERM] = handler
    with guard:  # the others do not know of it yet
        sync.noted.extend(noted)
    assert handled == []
    with pytest.raises(KeyboardInterrupt), guard:
        sync.agreed = True
    with guard:  # the evaluation that follows is not interrupted
        pass
    assert handled == noted
