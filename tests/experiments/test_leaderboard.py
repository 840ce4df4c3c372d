"""Tables of planted runs: what they say is known beforehand."""

import dataclasses

import numpy as np
import pytest
from sklearn.metrics import log_loss, roc_auc_score

from fieldwise import ConfigError, DataError
from fieldwise.evaluation import delong, sigmoid
from fieldwise.evaluation.calibration import calibration_error
from fieldwise.runs.leaderboard import leaderboards
from fieldwise.runs.records import Store

ROWS = 3000


@pytest.fixture
def kept(tmp_path):
    """Makes a run of a label and scores."""
    store = Store(tmp_path)

    def put(name, seed, y, score, task="binary", protocol="planted"):
        if task == "binary":
            test = {
                "auc": roc_auc_score(y, score),
                "logloss": log_loss(y, sigmoid(score), labels=[0, 1]),
            }
            test["ece"] = calibration_error(y, sigmoid(score))
        else:
            test = {"rmse": float(np.sqrt(np.mean((y - score) ** 2)))}
        about = {
            "seed": seed, "test_digest": "rows", "test": test, "task": task, "benchmark": "noise",
            "protocol": protocol, "parameters": 7, "epochs": 2, "seconds": 1.0, "seconds_per_epoch": 0.5,
        }  # fmt: skip
        return store.put(
            f"{name}{seed}", about, np.asarray(y, dtype=float), np.asarray(score, dtype=float)
        )

    return put


def planted(kept, gains, seeds=3, rows=ROWS, protocol="planted", base_seed=0):
    """Runs of models whose scores rise with the label by `gains`; they share most of their noise."""
    rng = np.random.default_rng(base_seed)
    y = rng.integers(0, 2, rows)
    shared = rng.normal(size=rows)
    return {
        name: [
            kept(
                name + protocol,
                s,
                y,
                gain * y + shared + 0.1 * rng.normal(size=rows),
                protocol=protocol,
            )
            for s in range(seeds)
        ]
        for name, gain in gains.items()
    }


def test_a_line_holds_means_and_the_order_is_theirs(kept):
    runs = planted(kept, {"base": 0.8, "better": 1.0, "worse": 0.5})
    (board,) = leaderboards(runs, replicates=100)
    assert [line.recipe for line in board.lines] == ["better", "base", "worse"]
    assert (board.base, board.rows, board.metric, board.protocol) == (
        "base",
        ROWS,
        "auc",
        "planted",
    )
    for line in board.lines:
        measured = [roc_auc_score(*record.test_rows[:2]) for record in runs[line.recipe]]
        assert line.by_seed["auc"] == pytest.approx(measured, abs=1e-12)
        assert line.metrics["auc"].value == pytest.approx(np.mean(measured), abs=1e-12)
        assert line.metrics["auc"].low < line.metrics["auc"].value < line.metrics["auc"].high


def test_unequal_numbers_of_seeds_are_not_mixed(kept):
    runs = planted(kept, {"base": 0.8, "better": 1.0, "worse": 0.5})
    # 8 and 6 runs: one number divides by three
    for left in ({"better": 2}, {"base": 2, "better": 1}):
        some = {name: records[: left.get(name, 3)] for name, records in runs.items()}
        with pytest.raises(
            DataError,
            match=f"found {left.get('base', 3)} of base, {left['better']} of better, 3 of",
        ):
            leaderboards(some, replicates=10)


def test_real_gains_are_significant_and_none_is_not(kept):
    runs = planted(kept, {"base": 0.8, "better": 0.9, "same": 0.8})
    (board,) = leaderboards(runs, replicates=500)
    lines = {line.recipe: line for line in board.lines}
    assert lines["base"].against is None
    better, same = (lines[name].against["auc"] for name in ("better", "same"))
    assert better.estimate.p < 0.01
    assert better.delong_p < 0.01
    assert 0 < better.estimate.low < better.estimate.value < better.estimate.high
    assert same.estimate.p > 0.05
    assert same.estimate.low < 0 < same.estimate.high
    y = runs["base"][0].test_rows[0]
    scores = {name: np.stack([r.test_rows[1] for r in records]) for name, records in runs.items()}
    assert better.delong_p == delong(y, scores["better"], scores["base"]).p
    # Noise that both models share is no doubt about their difference.
    whole = lines["better"].metrics["auc"]
    assert better.estimate.high - better.estimate.low < 0.6 * (whole.high - whole.low)


def test_protocols_are_kept_apart(kept):
    runs = planted(kept, {"a": 0.5, "b": 0.8}) | planted(kept, {"c": 2.0}, protocol="easier")
    other_rows = planted(kept, {"d": 0.6}, base_seed=9, protocol="planted")
    boards = leaderboards(runs | other_rows, base="b", replicates=10)
    assert [[line.recipe for line in board.lines] for board in boards] == [["b", "a"], ["c"], ["d"]]
    assert [board.base for board in boards] == ["b", "c", "d"]


def test_regressions_go_by_their_error(kept):
    y = np.random.default_rng(0).normal(size=200)
    runs = {
        name: [kept(name, 0, y, y + error, task="regression")]
        for name, error in (("far", 2.0), ("near", 1.0))
    }
    (board,) = leaderboards(runs)
    assert [line.recipe for line in board.lines] == ["near", "far"]
    assert board.lines[0].against["rmse"].estimate.value == pytest.approx(-1.0)
    assert board.lines[0].against["rmse"].delong_p is None


def test_the_calibration_error_has_an_interval_and_orders_lines(kept):
    rng = np.random.default_rng(0)
    logit = rng.normal(size=4000)
    y = (rng.random(4000) < sigmoid(logit)).astype(int)
    runs = {"loud": [kept("loud", 0, y, 3 * logit)], "true": [kept("true", 0, y, logit)]}
    (board,) = leaderboards(runs, metric="ece", replicates=50)
    assert [line.recipe for line in board.lines] == ["true", "loud"]
    for line, score in zip(board.lines, (logit, 3 * logit), strict=True):
        result = line.metrics["ece"]
        assert result.value == calibration_error(y, sigmoid(score))
        assert 0 <= result.low < result.value < result.high
    assert board.lines[0].metrics["ece"].value < 0.02
    assert board.lines[0].against["ece"].estimate.p < 0.01


def test_seeds_of_other_rows_are_refused(kept):
    runs = {"a": [kept("a", 0, [0, 1, 1], [1, 2, 3]), kept("a", 1, [1, 0, 0], [1, 2, 3])]}
    with pytest.raises(DataError, match="must share their test rows, but those of a differ"):
        leaderboards(runs)


def test_unknown_recipes_and_metrics_are_named(kept):
    runs = planted(kept, {"a": 0.5, "b": 0.8}, rows=50)
    with pytest.raises(
        ConfigError, match="baseline must be one of the recipes compared, found 'c'"
    ):
        leaderboards(runs, base="c")
    with pytest.raises(
        ConfigError,
        match=r"metric must be one of auc, logloss, .* for a binary label, found 'rmse'",
    ):
        leaderboards(runs, metric="rmse")


def test_binary_and_regression_may_be_asked_for_one_metric(kept):
    y = np.array([0.0, 1.0, 1.0, 0.0])
    runs = {
        "a": [kept("a", 0, y, y + [0.1, 0.3, 0.2, 0.0] * y)],
        "b": [kept("b", 0, y, y * 0.5, task="regression")],
    }
    assert [board.metric for board in leaderboards(runs, metric="logloss", replicates=20)] == [
        "logloss",
        "rmse",
    ]


def test_a_record_that_lacks_a_fact_is_named(kept):
    record = kept("m", 0, np.array([0, 1, 0, 1]), np.array([0.1, 0.4, -0.2, 0.9]))
    assert [record[fact] for fact in ("benchmark", "task", "seed", "parameters")] == [
        "noise",
        "binary",
        0,
        7,
    ]
    about = {name: value for name, value in record.about.items() if name != "test_digest"}
    with pytest.raises(DataError, match=r"m0 is damaged: its record has no 'test_digest'"):
        leaderboards({"m": [dataclasses.replace(record, about=about)]})


def test_a_line_says_which_of_its_runs_are_a_mean_with_lr(kept):
    runs = planted(kept, {"base": 0.8, "better": 1.0}, rows=300)
    for record, share in zip(runs["better"], (1.0, 0.0, 0.37), strict=True):
        record.about["network_share"] = share
    (board,) = leaderboards(runs, replicates=10)
    better, base = board.lines
    assert (better.network_shares, base.network_shares) == ((1.0, 0.0, 0.37), (1.0, 1.0, 1.0))
    assert base.mean_sentence is None
    assert better.mean_sentence == (
        "better: 2 of 3 runs ended as the mean of the network and LR, in which the network has 0%, 37%, so 1 of them "
        "is LR alone."
    )
    assert better.mean_sentence in board._repr_html_()
    assert board.to_plain()["lines"][0]["network_shares"] == [1.0, 0.0, 0.37]
