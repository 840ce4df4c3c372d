"""The trackers, with stubs of MLflow and wandb, and with the real libraries where they are installed."""

import sys
import types

import pytest

from fieldwise import (
    Categorical,
    ConfigError,
    DeepFM,
    Label,
    MissingExtraError,
    Recommender,
    Schema,
    TrainingSettings,
    simulate,
)
from fieldwise.training.callbacks import TRACKERS, MLflow, TensorBoard, WandB, check_tracker

SCHEMA = Schema(fields=(Categorical("user_id"), Categorical("item_id")), label=Label("liked"))
TRAINING = TrainingSettings(epochs=3, batch_size=18, patience=9)  # 900 rows: 50 steps an epoch


def trained(tracker):
    model = Recommender(SCHEMA, DeepFM(embedding_dim=4), training=TRAINING)
    return model.fit(simulate(1000), callbacks=[tracker]).history_


def check(found, result):
    """`found` has the pairs of step and value by name."""
    assert [step for step, _ in found["train/loss"]] == [50, 100, 150]
    for name in ("auc", "logloss"):
        values = [value for _, value in found[f"valid/{name}"]]
        assert values == pytest.approx([one.metrics[name] for one in result.evaluations], rel=1e-6)
        assert found[f"best/{name}"] == [(150, pytest.approx(result.best.metrics[name], rel=1e-6))]
    means = [
        (50 * k + 50, pytest.approx(one.train_loss)) for k, one in enumerate(result.evaluations)
    ]
    assert found["train/mean_loss"] == means
    assert found["best/epoch"] == [(150, result.best.epoch)]


class Stub(types.ModuleType):
    """What the trackers use of MLflow and wandb."""

    def __init__(self):
        super().__init__("stub")
        self.found, self.runs, self.ended, self.params = {}, [], [], {}
        self.active_run = lambda: None
        self.log_params = self.params.update
        self.end_run = self.ended.append

    def start_run(self, *, run_name, nested):
        self.runs.append((run_name, nested))
        return types.SimpleNamespace(info=types.SimpleNamespace(run_id="7"))

    def log_metrics(self, values, *, step, run_id):
        assert run_id == "7"
        self.log(values, step=step)

    def init(self, *, project, name, config, reinit):
        self.runs.append((name, project, reinit))
        self.params.update(config)
        return types.SimpleNamespace(
            log=self.log, finish=lambda exit_code: self.ended.append(exit_code)
        )

    def log(self, values, *, step):
        for name, value in values.items():
            self.found.setdefault(name, []).append((step, value))


@pytest.mark.parametrize(
    ("kind", "library", "run", "ends"),
    [
        (MLflow, "mlflow", ("first", False), ("FINISHED", "FAILED")),
        (WandB, "wandb", ("first", "fieldwise", "create_new"), (0, 1)),
    ],
)
def test_losses_metrics_settings_and_the_end_are_written(kind, library, run, ends, monkeypatch):
    stub = Stub()
    monkeypatch.setitem(sys.modules, library, stub)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    check(stub.found, trained(kind("first")))
    assert stub.runs == [run]
    assert (stub.params["model.name"], stub.params["training.batch_size"], stub.params["seed"]) == (
        "deepfm",
        18,
        0,
    )
    assert stub.ended == [ends[0]]
    broken = kind("second")
    monkeypatch.setattr(broken, "on_step", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trained(broken)
    assert stub.ended == list(ends)


def test_event_files_of_tensorboard_hold_the_run(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = trained(TensorBoard("a/b c", tmp_path))
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("a-b-c-")
    events = EventAccumulator(str(folder)).Reload()
    check(
        {
            name: [(one.step, one.value) for one in events.Scalars(name)]
            for name in events.Tags()["scalars"]
        },
        result,
    )
    (text,) = events.Tensors("settings/text_summary")
    assert b"| training.batch_size | 18 |" in text.tensor_proto.string_val[0]


@pytest.mark.filterwarnings("ignore")
def test_a_store_of_mlflow_holds_the_run(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    result = trained(MLflow("first"))
    (run,) = mlflow.MlflowClient().search_runs(["0"])
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params["training.batch_size"] == "18"
    names = run.data.metrics
    history = {
        name: mlflow.MlflowClient().get_metric_history(run.info.run_id, name) for name in names
    }
    check({name: [(one.step, one.value) for one in history[name]] for name in names}, result)


@pytest.mark.filterwarnings("ignore")
def test_wandb_keeps_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_MODE", "offline")
    kept = {}

    class Seen(WandB):
        def _close(self, *, failed):
            kept.update(failed=failed, batch_size=self.run.config["training.batch_size"])
            super()._close(failed=failed)

    trained(Seen("first"))
    assert (kept["failed"], kept["batch_size"]) == (False, 18)
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert all(
        name in file.read_bytes() for name in (b"best/auc", b"valid/logloss", b"train/mean_loss")
    )


def test_a_missing_library_or_an_unknown_tracker_is_a_sentence(monkeypatch):
    for name, kind in TRACKERS.items():
        monkeypatch.setitem(sys.modules, name, None)
        message = rf"tracking with {name} needs {name}, which is not installed: pip install 'fieldwise\[{name}\]'"
        with pytest.raises(MissingExtraError, match=message):
            kind("x")
    with pytest.raises(
        ConfigError, match="a tracker must be one of tensorboard, mlflow, wandb, found 'tb'"
    ):
        check_tracker("tb")
