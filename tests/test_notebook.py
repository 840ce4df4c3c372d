"""What notebooks show: HTML without scripts and with every value escaped, frames for pandas, pictures."""

from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from fieldwise import (
    AFM,
    FM,
    LR,
    AutoInt,
    Bag,
    Categorical,
    ConfigError,
    DataError,
    Label,
    MissingExtraError,
    Recipe,
    Recommender,
    Schema,
    TrainingSettings,
    prepare_recipe,
    simulate,
    train_recipe,
)
from fieldwise.evaluation.bootstrap import Estimate
from fieldwise.evaluation.calibration import reliability
from fieldwise.runs.leaderboard import Board, Difference, RecipeLine

EVIL = "<script>alert('x')</script>&"
FIELDS = (
    Categorical("user_id", role="user"),
    Bag("genres", role="item", min_count=2),
    Categorical("device"),
)
SCHEMA = Schema(fields=FIELDS, label=Label("liked"), group="user_id", keys=("user_id",))
LOG = simulate(600, users=20, items=30)
QUICK = TrainingSettings(epochs=3, batch_size=64, learning_rate=0.02)


@cache
def trained() -> Recommender:
    return Recommender(SCHEMA, FM(embedding_dim=4), training=QUICK).fit(LOG)


def board() -> Board:
    def line(recipe: str, auc: float, against: dict[str, Difference] | None) -> RecipeLine:
        metrics = {
            "auc": Estimate(value=auc, low=auc - 0.01, high=auc + 0.01, p=1.0, standard_error=0.005)
        }
        metrics["logloss"] = Estimate(value=0.5, low=0.4, high=0.6, p=1.0, standard_error=0.005)
        by_seed = {"auc": (auc - 0.002, auc + 0.002), "logloss": (0.5, 0.5)}
        return RecipeLine(
            recipe=recipe, seeds=(0, 1), metrics=metrics, by_seed=by_seed, against=against, parameters=1234, epochs=2.0,
            seconds=1.5, seconds_per_epoch=None, runs=(), network_shares=(1.0, 1.0),
        )  # fmt: skip

    gain = Difference(
        estimate=Estimate(value=0.05, low=0.04, high=0.06, p=0.01, standard_error=0.005)
    )
    lines = line(EVIL, 0.8, {"auc": gain, "logloss": gain}), line("lr", 0.75, None)
    return Board(
        benchmark="films",
        protocol=EVIL,
        rows=1000,
        task="binary",
        metric="auc",
        base="lr",
        replicates=100,
        lines=lines,
    )


class Cells(HTMLParser):
    """Tags that were opened and the text between them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.open.append(tag)
        assert {name for name, _ in attrs} <= {"style"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def shown(thing: Any) -> list[str]:
    """The texts of its HTML, which is whole, plain and without scripts."""
    result = Cells(thing._repr_html_())
    assert not result.open
    assert set(result.tags) <= {"p", "b", "table", "thead", "tbody", "tr", "th", "td"}
    assert len(thing._repr_html_()) < 20_000
    return result.text


def test_a_schema() -> None:
    texts = shown(
        Schema(
            fields=(*FIELDS, Categorical(EVIL)), label=Label("stars", positive_above=3), time="at"
        )
    )
    assert {"genres", "bag", "item", "min_count 2", EVIL, "Schema of 4 fields"} <= set(texts)
    assert texts[-1] == "label stars (binary: stars above 3); time at"


def test_a_training() -> None:
    result = trained().history_
    texts = shown(result)
    assert texts.count("yes") == 1
    assert any(
        f"{result.monitor} {result.best.metrics[result.monitor]:.4g}" in text for text in texts
    )
    frame = result.to_pandas()
    assert isinstance(frame, pd.DataFrame)
    assert frame["epoch"].tolist() == [one.epoch for one in result.evaluations]
    assert frame["valid_auc"].tolist() == [one.metrics["auc"] for one in result.evaluations]
    assert frame.loc[frame["kept"], "epoch"].tolist() == [result.best.epoch]


def test_a_bundle_and_that_of_a_recipe_with_both_parts_metrics(tmp_path: Path) -> None:
    texts = shown(trained().bundle_)
    assert {"fm", "user_id, genres, device", "liked", "none", trained().bundle_.digest[:12]} <= set(
        texts
    )
    assert any(f"auc {trained().history_.best.metrics['auc']:.4f}" in text for text in texts)
    LOG.write_csv(tmp_path / "log.csv")
    plain = {
        "data": {"path": str(tmp_path / "log.csv")},
        "schema": SCHEMA.to_dict(),
        "split": {"kind": "random"},
    }
    recipe = Recipe.from_dict({**plain, "model": {"name": "lr"}, "training": {"epochs": 1}}, "lr")
    run = train_recipe(recipe, prepare_recipe(recipe, tmp_path))
    texts = shown(run.bundle)
    for part, metrics in (("validation", run.valid), ("test", run.test)):
        after = texts[texts.index(f"{part} rows") + 1]
        assert after.startswith(f"auc {metrics['auc']:.4f}, logloss {metrics['logloss']:.4f}")


def test_an_explanation() -> None:
    strange = LOG.head(3).with_columns(device=pl.lit(EVIL))
    result = trained().explain(strange)
    assert "liked: contributions of 3 rows" in shown(result)
    one = shown(trained().explain(strange.head(1)))
    assert f"{EVIL} (not in the vocabulary)" in one
    frame = result.to_pandas()
    assert frame.columns.tolist() == [
        "row",
        "field",
        "value",
        "contribution",
        "score",
        "prediction",
    ]
    assert frame["field"].tolist() == ["user_id", "genres", "device"] * 3
    np.testing.assert_array_equal(
        frame["contribution"].to_numpy().reshape(3, 3), result.contributions
    )
    np.testing.assert_allclose(frame["prediction"][::3], trained().predict_proba(strange)[:, 1])


def test_a_leaderboard() -> None:
    texts = shown(board())
    assert {
        EVIL,
        f"films, protocol {EVIL}, 1,000 test rows",
        "0.8000 [0.7900, 0.8100]",
        "1,234",
    } <= set(texts)
    assert "+0.0500 [+0.0400, +0.0600]" in texts
    assert "baseline" in texts
    frame = board().to_pandas()
    assert frame["auc"].tolist() == [0.8, 0.75]
    assert frame["auc_p"].tolist()[0] == 0.01
    assert np.isnan(frame["auc_gain"][1])
    chart = board().plot()
    assert [word for word in words(chart) if word in ("lr", EVIL[:21] + "…")] == [
        EVIL[:21] + "…",
        "lr",
    ]
    assert [e.get("class") for e in ElementTree.fromstring(chart).iter("circle")] == [
        "dot c0",
        "dot c1",
    ]


# Pictures


def words(chart: str) -> list[str]:
    """The texts of a chart and of its tiles, without those of axes."""
    return [str(e.text) for e in ElementTree.fromstring(chart).iter() if e.tag in ("text", "title")]


def places(chart: str, tag: str, style: str, x: str, y: str) -> np.ndarray:
    """Where a chart's elements lie, [N, 2]."""
    results = [e for e in ElementTree.fromstring(chart).iter(tag) if e.get("class") == style]
    return np.array([[float(e.get(x, "")), float(e.get(y, ""))] for e in results])


def test_learning_curves() -> None:
    chart = trained().plot()
    assert {"training loss", "validation logloss", "validation AUC"} <= set(words(chart))
    history = trained().history_.evaluations
    rows = len(history)
    for at, name in (
        (places(chart, "circle", "dot c1", "cx", "cy")[:rows], "logloss"),
        (places(chart, "circle", "dot c0", "cx", "cy")[-rows:], "auc"),
    ):
        own = np.array([[one.epoch, one.metrics[name]] for one in history])
        result = np.corrcoef(at.T, own.T)
        assert result[0, 2] == pytest.approx(1)
        assert result[1, 3] == pytest.approx(-1, abs=1e-3), "up is more"


def test_calibration_and_roc() -> None:
    score = trained().decision_function(LOG)
    chart = trained().plot("roc", LOG)
    assert f"AUC {roc_auc_score(LOG['liked'], score):.4f}" in words(chart)
    line = next(e for e in ElementTree.fromstring(chart).iter("polyline"))
    x, y = np.array([point.split(",") for point in str(line.get("points")).split()], float).T
    area = np.trapezoid((y.max() - y) / 180, (x - 50) / 260)
    assert area == pytest.approx(roc_auc_score(LOG["liked"], score), abs=0.003)
    result = reliability(LOG["liked"], trained().predict_proba(LOG)[:, 1])
    chart = trained().plot("calibration", LOG.drop("liked"), LOG["liked"])
    at = places(chart, "circle", "dot c0", "cx", "cy")
    np.testing.assert_allclose((at[:, 0] - 50) / 260, result.predicted / result.edge(), atol=1e-4)
    np.testing.assert_allclose((190 - at[:, 1]) / 180, result.observed / result.edge(), atol=1e-4)


def test_explanations_and_attention() -> None:
    result = trained().explain(LOG.head(4))
    for chart, sizes in (
        (result.plot(), np.abs(result.contributions).mean(0)),
        (result.plot(2), result.contributions[2]),
    ):
        dots = list(ElementTree.fromstring(chart).iter("circle"))
        at = np.array([float(e.get("cx", "")) for e in dots])
        own = sizes[np.argsort(-np.abs(sizes), kind="stable")]
        scale = np.ptp(at) / np.ptp(own)
        np.testing.assert_allclose(at - at[0], scale * (own - own[0]), atol=0.05)
        assert [e.get("class") for e in dots] == [
            "dot c1" if size < 0 else "dot c0" for size in own
        ]
    assert f"device = {LOG['device'][2]}" in words(result.plot(2))
    with pytest.raises(
        DataError, match="only AFM and AutoInt have attention over fields, found FM"
    ):
        result.plot_attention()
    with pytest.raises(DataError, match="rows are numbered from 0 to 3"):
        result.plot(9)
    for model in (
        AFM(embedding_dim=4, attention_dim=2),
        AutoInt(embedding_dim=4, attention_dim=4, heads=2, layers=2),
    ):
        fitted = Recommender(SCHEMA, model, training=QUICK).fit(LOG)
        attending = fitted.explain(LOG.head(4))
        for row in (None, 1):
            tiles = [word for word in words(attending.plot_attention(row)) if ": " in word]
            # each pair stands twice; each field's row sums to 1
            total = 2.0 if isinstance(model, AFM) else 3.0
            assert len(tiles) == (6 if isinstance(model, AFM) else 9)
            assert sum(float(tile.rpartition(": ")[2]) for tile in tiles) == pytest.approx(
                total, abs=5e-3
            )
    # AutoInt's, until its attention is uniform
    for parameter in fitted.bundle_.network.parameters():
        parameter.data.mul_(0.02)
    chart = fitted.explain(LOG.head(4)).plot_attention()
    assert chart.about.startswith(
        "attention is uniform: all weights are within 10 % of the equal ones, 0.3333"
    )
    assert chart.count('fill-opacity="0.37"') == 9, (
        "a third of three times the equal weight of three fields"
    )


def test_a_wrong_picture_is_a_sentence() -> None:
    with pytest.raises(
        ConfigError, match="kind must be one of 'training', 'roc', 'calibration', found 'lift'"
    ):
        trained().plot("lift")
    with pytest.raises(ConfigError, match="labelled rows of a binary label, found none"):
        trained().plot("roc")
    regression = Schema(fields=FIELDS, label=Label("true_probability", task="regression"))
    fitted = Recommender(regression, LR(), training=QUICK).fit(LOG)
    assert "validation RMSE" in words(fitted.plot())
    with pytest.raises(ConfigError, match="found a regression"):
        fitted.plot("roc", LOG)


def _absent(frame: pl.DataFrame) -> None:
    raise ImportError("no pandas")


def test_without_the_extra_it_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pl.DataFrame, "to_pandas", _absent)
    for convert in (
        trained().history_.to_pandas,
        board().to_pandas,
        trained().explain(LOG.head(2)).to_pandas,
    ):
        with pytest.raises(MissingExtraError, match=r"pip install 'fieldwise\[pandas\]'"):
            convert()
