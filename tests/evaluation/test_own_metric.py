"""A metric that only this file registers, a formula of its own, is used by everything that knows metrics."""

import dataclasses

import numpy as np
import polars as pl
import pytest

from fieldwise import LR, ConfigError, Label, Recommender, TrainingSettings
from fieldwise.config import parse
from fieldwise.evaluation import binary_metrics, regression_metrics
from fieldwise.evaluation.bootstrap import resampled
from fieldwise.evaluation.metrics import METRICS, Metric
from fieldwise.report.metrics_sections import metrics_section
from fieldwise.runs.leaderboard import leaderboards
from fieldwise.runs.records import LabelScores, Store
from fieldwise.training.history import learning_curves
from fieldwise.training.objective import Objective, monitored

GAP = Metric(
    name="gap",
    title="gap of means",
    tasks=("binary",),
    aspect="ranking",
    higher=True,
    measure=lambda rows: float(
        rows.probability[rows.positive].mean() - rows.probability[~rows.positive].mean()
    ),
    both_classes=True,
    watched=True,
    compared=True,
)


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    monkeypatch.setitem(METRICS, GAP.name, GAP)


def log(rows=200, gain=1.0):
    rng = np.random.default_rng(3)
    y = rng.integers(0, 2, rows).astype(float)
    return y, gain * y + rng.normal(size=rows)


def gap(y, logit):
    p = 1 / (1 + np.exp(-logit))
    return p[y == 1].mean() - p[y == 0].mean()


def test_evaluate_returns_it():
    y, logit = log()
    assert binary_metrics(y, logit)["gap"] == pytest.approx(gap(y, logit), rel=1e-12)
    assert "gap" not in binary_metrics([1, 1], [0.0, 1.0], one_class=True)
    assert "gap" not in regression_metrics(y, logit)
    metrics = Objective.of(Label("click")).metrics(y, logit)
    assert metrics["gap"] == pytest.approx(gap(y, logit), rel=1e-12)


def test_its_replicates_are_its_values_of_the_drawn_rows():
    y, logit = log(50)
    rng = np.random.default_rng(7)
    for value in resampled(y, logit[None], "gap", replicates=5, seed=7)[:, 0]:
        rows = rng.integers(0, 50, 50)
        assert value == pytest.approx(gap(y[rows], logit[rows]), rel=1e-12)


def stored(folder, name, y, logit, *, without=()):
    test = binary_metrics(y, logit)
    about = {
        "seed": 0, "test_digest": "rows", "task": "binary", "benchmark": "noise", "protocol": "",
        "test": {metric: value for metric, value in test.items() if metric not in without},
        "parameters": 7, "epochs": 2, "seconds": 1.0, "seconds_per_epoch": 0.5,
    }  # fmt: skip
    return [Store(folder).put(name, about, y, logit)]


def test_compare_has_a_column_and_sorts_by_it(tmp_path):
    y, logit = log()
    runs = {"weak": stored(tmp_path, "weak", y, logit)}
    runs["strong"] = stored(tmp_path, "strong", y, logit * 3)
    (board,) = leaderboards(runs, metric="gap", replicates=20)
    assert board.metrics[-1] == "gap"
    assert [line.recipe for line in board.lines] == ["strong", "weak"]
    gain = board.lines[0].gain("gap")
    assert gain.value == pytest.approx(gap(y, logit * 3) - gap(y, logit), rel=1e-9)


def test_a_run_stored_before_it_existed_shows_it_as_missing(tmp_path):
    y, logit = log()
    runs = {"new": stored(tmp_path, "new", y, logit)}
    runs["old"] = stored(tmp_path, "old", y, logit * 2, without=("gap",))
    (board,) = leaderboards(runs, metric="gap", replicates=20)
    assert [line.recipe for line in board.lines] == ["new", "old"]
    assert "gap" not in board.lines[1].metrics
    assert board.lines[1].gain("gap") is None
    assert board.lines[1].gain("auc") is not None
    frame = board.to_pandas()
    assert frame["gap"].isna().tolist() == [False, True]
    (row,) = [row for row in board.table().rows if row[0] == "old"]
    assert row[board.table().columns.index("gap of means")] == "-"
    assert "gap of means" in board._repr_html_()
    assert board.plot()

    only_old = {"old": runs["old"]}
    with pytest.raises(ConfigError, match="which is newer than these runs: train them again"):
        leaderboards(only_old, metric="gap", replicates=20)
    (board,) = leaderboards(only_old, replicates=20)
    assert "gap" not in board.metrics


def test_the_report_has_a_row_with_its_interval():
    y, logit = log()
    section, _ = metrics_section(LabelScores(y, logit), None, True, None, seed=0)
    ((title, value, interval),) = [row for row in section.blocks[0].rows if "gap" in row[0]]
    assert (title, value) == ("gap of means", f"{gap(y, logit):.4f}")
    low, high = map(float, interval.split(" to "))
    assert low < gap(y, logit) < high


def test_early_stopping_may_use_it_and_the_higher_value_is_kept():
    settings = parse(TrainingSettings, {"monitor": "gap"}, "training")
    assert monitored(settings, Objective.of(Label("click")), grouped=False) == "gap"
    number = Objective.of(Label("rating", task="regression"))
    with pytest.raises(ConfigError, match="for a regression label, found 'gap'"):
        monitored(settings, number, grouped=False)


def test_a_training_is_watched_by_it():
    rng = np.random.default_rng(0)
    item = rng.integers(0, 8, 600)
    rows = {"item": [f"i{k}" for k in item], "user": [f"u{k}" for k in rng.integers(0, 9, 600)]}
    clicks = (rng.random(600) < item / 8).astype(int)
    training = TrainingSettings(monitor="gap", epochs=4, learning_rate=0.05, batch_size=64)
    history = Recommender(model=LR(), training=training).fit(pl.DataFrame(rows), clicks).history_
    gaps = [evaluation.metrics["gap"] for evaluation in history.evaluations]
    assert (history.monitor, history.best.metrics["gap"]) == ("gap", max(gaps))
    assert "valid gap" in history._repr_html_()


def test_learning_curves_draw_it_with_the_metrics_of_its_aspect():
    history = [
        {"epoch": k, "metrics": {"auc": 0.5, "gap": k / 10}, "train_loss": None} for k in (1, 2)
    ]
    curves = learning_curves(history, 2.0)
    assert curves["AUC and gap of means"][1]["validation gap of means"] == [0.1, 0.2]


def test_a_metric_of_groups_needs_groups_and_is_drawn_by_group(monkeypatch):
    """The mean over groups of their positive rate, so that it does not depend on the scores."""

    def rates(y, score, group, weight):
        names, rows = np.unique(group, return_counts=True)
        return np.array([np.mean(y[group == name]) for name in names]), rows

    grouped = dataclasses.replace(
        GAP,
        name="gap",
        both_classes=False,
        group_values=rates,
        measure=lambda rows: float(rows.y.mean()),
    )
    monkeypatch.setitem(METRICS, "gap", grouped)
    y, logit = log()
    group = np.arange(200) % 20
    assert "gap" not in binary_metrics(y, logit)
    assert binary_metrics(y, logit, group=group)["gap"] == pytest.approx(y.mean())
    section, _ = metrics_section(LabelScores(y, logit), group, True, None, seed=0)
    assert any(row[0] == "gap of means" and " to " in row[2] for row in section.blocks[0].rows)
    settings = TrainingSettings(monitor="gap")
    with pytest.raises(ConfigError, match="'gap' needs groups"):
        monitored(settings, Objective.of(Label("click")), grouped=False)
