"""A whole run: columns left out, models chosen, evaluated and written; no test row is used before the end."""

import dataclasses
import json
import sys
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
from automatic_runs import shorten
from sklearn.metrics import log_loss, mean_squared_error, roc_auc_score

import fieldwise
from fieldwise import (
    Bundle,
    Categorical,
    ColumnSplit,
    ConfigError,
    DataError,
    Label,
    Numeric,
    Sampled,
    Schema,
    load_recipe,
    prepare_recipe,
    train_recipe,
)
from fieldwise.automatic import schedule, trial
from fieldwise.automatic.budget import Deadline
from fieldwise.automatic.run import run_auto
from fieldwise.automatic.settings import AutoSettings
from fieldwise.automatic.trial import Trial, calibrated, fit_trial
from fieldwise.evaluation.calibration import Platt, fit_platt

MINUTES = 30.0  # more than any of these runs takes, so that none depends on the machine
FIELDS = (
    Categorical("user_id", role="user"),
    Categorical("city", role="user"),
    Categorical("item_id", role="item"),
    Numeric("length", role="item", encoding="quantile", transform="none"),
)
SCHEMA = Schema(
    fields=FIELDS, label=Label("liked"), time="timestamp", group="user_id", keys=("user_id",)
)


def run(data, said=None, **settings):
    heard = [] if said is None else said
    return run_auto(
        data, AutoSettings(**{"minutes": MINUTES, "schema": SCHEMA, **settings}), heard.append
    )


@pytest.fixture(scope="module")
def made(log, tmp_path_factory):
    """One run with an inferred schema, from a CSV file to a folder; and what it said."""
    folder = tmp_path_factory.mktemp("made")
    log.write_csv(folder / "log.csv")
    said: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        shorten(patch)
        patch.setattr("fieldwise.automatic.run.REPORT_ROWS", 20)
        result = run(folder / "log.csv", said, schema=None, out=folder / "out", keep=())
    return result, said, folder


def test_the_audit_is_printed_and_its_columns_are_not_read(made):
    result, said, _ = made
    read = set(result.schema.columns)
    assert not read & {
        "minutes_watched",
        "country",
        "row_id",
        "true_probability",
        "timestamp",
        "liked",
    }
    assert {"user_id", "item_id"} <= read
    loud = [
        line
        for line in said
        if line.startswith("LEFT OUT: column 'minutes_watched' alone predicts the label")
    ]
    assert len(loud) == 1
    assert "AUC 1.0000 [" in loud[0]
    assert loud[0].endswith(
        "keep it: --keep minutes_watched, or in Python keep=['minutes_watched']"
    )
    for column in ("country", "row_id"):
        assert any(f"column '{column}'" in line for line in said)
    split = "split into 1,600 train, 200 valid, 200 test rows: the latest rows by 'timestamp'"
    assert any(line.startswith(split) for line in said)


def test_the_figures_are_those_of_the_bundle_on_the_latest_rows(made, log):
    result, _, folder = made
    test = log.sort("timestamp").tail(200)
    y, p = test["liked"].to_numpy(), Bundle.load(folder / "out" / "bundle").predict(test)
    line = result.chosen
    assert result.test_rows == 200
    assert line.metrics["auc"].value == pytest.approx(roc_auc_score(y, p))
    assert line.metrics["logloss"].value == pytest.approx(log_loss(y, p), rel=1e-6)
    rate = log.sort("timestamp").head(1600)["liked"].mean()
    guess = result.line("constant")
    assert guess.metrics["logloss"].value == pytest.approx(log_loss(y, np.full(200, rate)))
    assert not line.against, "it has learned from more rows than the baselines"
    judged = result.judged
    assert judged.model in result.learned
    assert not any("NOTHING WAS LEARNED" in sentence for sentence in result.sentences())
    gained = judged.against["constant"]["logloss"]
    assert gained.value == pytest.approx(
        judged.metrics["logloss"].value - guess.metrics["logloss"].value
    )
    assert gained.low < gained.value < gained.high


def test_the_choice_is_by_validation_rows(made):
    result, _, _ = made
    models = [line for line in result.lines if line.model != "constant"]
    least = min(line.valid for line in models)
    assert result.chosen in models
    assert result.chosen.valid < least + 0.01
    assert {"constant", "LR", "FM", "LightGBM"} <= {line.model for line in result.lines}
    losses = [line.metrics["logloss"].value for line in result.lines]
    assert losses == sorted(losses)


def test_the_folder_holds_everything_and_the_recipe_repeats_the_model(made):
    result, _, folder = made
    out = folder / "out"
    names = {
        "schema.toml",
        "recipe.toml",
        "leaderboard.json",
        "leaderboard.md",
        "bundle",
        "report.html",
    }
    assert {p.name for p in out.iterdir()} == names
    assert Schema.from_toml(out / "schema.toml") == result.schema
    assert json.loads((out / "leaderboard.json").read_text())["chosen"] == result.chosen.model
    assert "| constant |" in (out / "leaderboard.md").read_text()
    assert "<html" in (out / "report.html").read_text()[:200]
    assert [p.name for p in folder.iterdir() if p.is_dir()] == ["out"], "no partial folder is left"
    recipe = load_recipe(out / "recipe.toml")
    assert recipe.training.refit
    prepared = prepare_recipe(recipe, folder)
    again = train_recipe(recipe, prepared)
    scores = result.best.score(prepared.test.frame), again.bundle.score(prepared.test.frame)
    np.testing.assert_allclose(*scores, rtol=1e-5, atol=1e-6)


def test_the_leaderboard_is_a_frame_and_the_result_reads_well(made):
    result, _, _ = made
    frame = result.leaderboard
    assert frame["model"].to_list() == [line.model for line in result.lines]
    assert frame["chosen"].sum() == 1
    assert {"auc", "auc_low", "auc_high", "logloss_less_lr", "logloss_less_constant_high"} <= set(
        frame.columns
    )
    text = repr(result)
    assert text.startswith("model ")
    assert f"{result.judged.model} against a constant: " in text
    assert "200 test rows were evaluated once" in " ".join(text.split())


class Weights:
    """A table's weights, of four rows."""

    def __init__(self, weight):
        self.weight = weight

    def __len__(self):
        return 4


def test_the_constant_is_the_share_of_positives_by_weight():
    y = np.array([1.0, 1.0, 0.0, 0.0])
    sampled = Label("liked", sampled=Sampled(negatives=0.25))
    for label, weight, share in [
        (Label("liked"), None, 0.5),
        (Label("liked"), np.array([1.0, 2.0, 4.0, 5.0]), 0.25),
        (sampled, None, 0.2),
    ]:
        part = SimpleNamespace(main=y, table=Weights(weight))
        task = SimpleNamespace(
            metric="logloss",
            schema=SimpleNamespace(label=label),
            prepared=SimpleNamespace(train=part, valid=part),
            settings={"seed": 0},
        )
        scores = trial.constant(task).valid
        np.testing.assert_allclose(1 / (1 + np.exp(-scores)), share)


def candidate(title, y, z):
    """A trained network with these scores of the validation rows."""
    loss = float(np.logaddexp(0, np.where(y > 0, -z, z)).mean())
    return Trial(raw=None, title=title, valid=z, value=loss, trained=object())


def tried_on(y, *networks):
    """Trials of networks by title and scores, after the constant."""
    tried = trial.Trials.__new__(trial.Trials)
    tried.task = SimpleNamespace(
        metric="logloss",
        schema=SimpleNamespace(label=Label("liked")),
        prepared=SimpleNamespace(valid=SimpleNamespace(main=y, table=SimpleNamespace(weight=None))),
    )
    constant = dataclasses.replace(candidate("constant", y, y * 0.0), trained=None)
    tried.trials = [constant, *(candidate(title, y, z) for title, z in networks)]
    return tried


def test_the_simplest_is_chosen_unless_another_is_significantly_better():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 400)
    simple = rng.normal(0, 1, 400) + (2 * y - 1)

    def errors(z):
        """How many standard errors of the paired difference are gained."""
        gain = np.logaddexp(0, np.where(y > 0, -simple, simple)) - np.logaddexp(
            0, np.where(y > 0, -z, z)
        )
        return gain.mean() / (gain.std(ddof=1) / 20)

    moves = [
        0.05 * np.where(rng.permutation(400) < 4 * right, 1, -1) * (2 * y - 1)
        for right in range(50, 61)
    ]
    gained = [errors(simple + move) for move in moves]
    assert any(0.5 < e < 0.95 for e in gained)
    assert any(1.05 < e < 3 for e in gained)
    for move, e in zip(moves, gained, strict=True):
        tried = tried_on(y, ("LR", simple), ("AFM", simple + move))
        assert tried.models[0].title == ("AFM" if e > 0 else "LR")
        assert tried.chosen.title == ("AFM" if e > 1 else "LR")
        tried.trials.insert(1, tried.trials.pop())  # AFM was trained first
        assert tried.chosen.title == ("AFM" if e > 1 else "LR")


def test_a_network_that_has_learned_is_chosen_before_a_simpler_one_that_has_not():
    y = np.tile([0.0, 1.0], 200)
    noise = np.tile([1.0, 1.0, -1.0, -1.0], 100)  # none of the label's
    tried = tried_on(y, ("LR", noise + 0.26 * (2 * y - 1)), ("FM", 0.04 * (2 * y - 1)))
    assert [tried.learned(one) for one in tried.trials[1:]] == [False, True]
    assert tried.chosen.title == "FM"


@pytest.mark.usefixtures("few_models")
def test_test_labels_have_no_say_in_anything_but_the_figures(log):
    last = log["timestamp"].sort()[-200]
    flipped = (
        pl.when(pl.col("timestamp") >= last).then(1 - pl.col("liked")).otherwise(pl.col("liked"))
    )
    one, two = run(log), run(log.with_columns(liked=flipped))
    assert one.recipe == two.recipe
    assert {line.model: line.valid for line in one.lines} == {
        line.model: line.valid for line in two.lines
    }
    np.testing.assert_array_equal(one.best.score(log), two.best.score(log))
    assert one.chosen.metrics["auc"].value == pytest.approx(1 - two.chosen.metrics["auc"].value)


@pytest.mark.usefixtures("few_models")
def test_a_kept_column_stays_and_a_given_schema_is_audited_too(log):
    fields = (*FIELDS, Numeric("minutes_watched"))
    schema = Schema(fields=fields, label=Label("liked"), time="timestamp")
    said: list[str] = []
    assert "minutes_watched" not in run(log, said, schema=schema).schema.columns
    assert any(line.startswith("LEFT OUT: column 'minutes_watched'") for line in said)
    kept = run(log, schema=schema, keep=["minutes_watched"])
    assert "minutes_watched" in kept.schema.columns
    assert kept.chosen.metrics["auc"].value > 0.99
    with pytest.raises(
        ConfigError, match="keep must name a column that a field reads, found 'nope'"
    ):
        run(log, keep=["nope"])


@pytest.mark.slow
@pytest.mark.usefixtures("few_models")
def test_a_number_is_predicted_too_and_the_constant_is_its_mean(log):
    schema = Schema(fields=FIELDS[:3], label=Label("length", task="regression"), time="timestamp")
    result = run(log, schema=schema, keep=["item_id"])
    test = log.sort("timestamp").tail(200)
    y, mean = test["length"].to_numpy(), log.sort("timestamp").head(1600)["length"].mean()
    line, guess = result.chosen, result.line("constant")
    assert line.metrics["rmse"].value == pytest.approx(
        mean_squared_error(y, result.best.predict(test)) ** 0.5
    )
    assert guess.metrics["rmse"].value == pytest.approx(np.sqrt(np.mean((y - mean) ** 2)))
    assert line.calibration_error is None
    assert "RMSE" in repr(result)


@pytest.mark.usefixtures("few_models")
def test_models_without_time_or_package_are_skipped_with_a_note(log, monkeypatch):
    monkeypatch.setattr(schedule, "seconds_of", lambda *_: 1e6)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    said: list[str] = []
    result = run(log, said)
    assert set(result.skipped) == {"FM", "LightGBM"}
    assert "LightGBM, which is not installed: pip install" in result.skipped["LightGBM"]
    assert result.line("LightGBM") is None
    assert "an epoch takes about 1e+06 s, too long for the" in result.skipped["FM"]
    assert result.line("FM") is None
    assert any(line.startswith("FM is left out: an epoch takes about") for line in said)
    assert any("FM was left out" in sentence for sentence in result.sentences())
    assert (
        result.sentences()[-1] == "CHECK FM: left out for time, give more minutes to have them too"
    )


@pytest.mark.usefixtures("few_models")
def test_a_training_out_of_time_ends_at_its_best(log, monkeypatch):
    monkeypatch.setattr(schedule, "Deadline", lambda _: Deadline(0.0))
    result = run(log)
    assert {line.stopped for line in result.lines if line.model in ("LR", "FM")} == {"time"}


@pytest.mark.usefixtures("few_models")
def test_a_choice_that_is_no_better_than_the_constant_is_warned_about(log, monkeypatch):
    def untrained(title, *given):
        """A training that ended before its first step: nearly the constant, and not to the last digit."""
        one = fit_trial(title, *given)
        flat = trial.constant(given[1]).valid + 1e-9
        value = trial.constant(given[1]).value * (1 - 1e-9)
        return dataclasses.replace(one, valid=flat, value=value, stopped="time")

    monkeypatch.setattr(schedule, "fit_trial", untrained)
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    hurried = run(log)
    patient = dataclasses.replace(
        hurried, lines=tuple(dataclasses.replace(one, stopped="patience") for one in hurried.lines)
    )
    ended = "the time for LR ended its training: more minutes may improve it"
    for result, remedy in (
        (hurried, "give more minutes"),
        (patient, "use more rows or other columns"),
    ):
        (said,) = [
            sentence
            for sentence in result.sentences()
            if sentence.startswith("CHECK LR: NOTHING WAS LEARNED")
        ]
        assert remedy in said
        assert (ended in result.sentences()) == (result is hurried)
        assert not result.to_plain()["learned"]


@pytest.mark.usefixtures("few_models")
def test_ctrl_c_keeps_the_trained_models(log, monkeypatch, tmp_path):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(schedule, "seconds_of", interrupt)
    result = run(log, out=tmp_path / "out")
    assert result.interrupted
    assert result.chosen.model in ("LR", "LightGBM")
    Bundle.load(tmp_path / "out" / "bundle")
    monkeypatch.setattr(schedule, "fit_trial", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(log)


@pytest.mark.usefixtures("few_models")
def test_a_former_result_is_replaced_only_when_asked(log, tmp_path, monkeypatch):
    monkeypatch.setattr("fieldwise.automatic.run.REPORT_SECONDS", 1e9)
    out = tmp_path / "out"
    said: list[str] = []
    run(log, said, out=out)
    assert any("there is no time left for the report: `fieldwise report" in line for line in said)
    first = (out / "leaderboard.json").read_bytes()
    with pytest.raises(ConfigError, match="exists: give overwrite"):
        run(log, out=out)
    assert (out / "leaderboard.json").read_bytes() == first
    (out / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds .notes\.txt. too: move it away first"):
        run(log, out=out, overwrite=True, seed=1)
    (out / "notes.txt").unlink()
    run(log, out=out, overwrite=True, seed=1)
    assert (out / "leaderboard.json").read_bytes() != first
    # A table from memory is written too, so that the recipe finds it.
    recipe = load_recipe(out / "recipe.toml")
    assert recipe.data.path == str(out / "auto-table.parquet")
    assert pl.read_parquet(out / "auto-table.parquet").equals(log)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(ConfigError, match="needs a folder of its own"):
        run(log, out=tmp_path / "mine", overwrite=True)


@pytest.mark.slow
@pytest.mark.usefixtures("few_models")
def test_without_a_time_rows_are_split_at_random_and_that_is_reported(log):
    said: list[str] = []
    plain = Schema(fields=FIELDS, label=Label("liked"))
    assert run(log, said, schema=plain).recipe.split.stratify
    assert any(
        line.endswith("rows are split at random: no column orders the rows") for line in said
    )


@pytest.mark.slow
@pytest.mark.usefixtures("few_models")
def test_a_column_can_name_the_parts(log):
    said: list[str] = []
    named = log.with_columns(part=pl.Series(["test", "valid", *["train"] * 8] * (log.height // 10)))
    result = run(named, said, schema=None, label="liked", split=ColumnSplit(column="part"))
    assert "part" not in {f.name for f in result.schema.fields}
    assert "split into 1,600 train, 200 valid, 200 test rows: as requested" in said
    test = named.filter(pl.col("part") == "test")
    loss = log_loss(test["liked"].to_numpy(), result.best.predict(test))
    assert result.chosen.metrics["logloss"].value == pytest.approx(loss, rel=1e-6)
    with pytest.raises(DataError, match="'nope'"):
        run(named, split=ColumnSplit(column="nope"))


def test_in_python_nothing_is_written_without_a_folder(
    log, tmp_path, monkeypatch, capsys, few_models
):
    monkeypatch.chdir(tmp_path)
    result = fieldwise.auto(log.head(600).to_pandas(), "liked", minutes=MINUTES, quiet=True)
    assert capsys.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []
    assert result.folder is None
    assert len(result.best.predict(log.tail(3))) == 3


def test_settings_out_of_range():
    for minutes in (0, float("nan")):
        with pytest.raises(ConfigError, match="minutes must be above 0"):
            AutoSettings(minutes=minutes)
    with pytest.raises(ConfigError, match="seed must lie between 0"):
        AutoSettings(seed=-1)


def test_too_few_rows_of_a_class_are_one_sentence(log):
    rare = log.with_columns(liked=pl.Series([1, 1] + [0] * (log.height - 2)))
    with pytest.raises(DataError, match="needs training, validation and test rows"):
        run(rare)


@pytest.mark.usefixtures("few_models")
def test_a_calibrated_bundle_has_figures_of_before_and_after(log, monkeypatch):
    line = Platt(slope=0.5, intercept=0.1)
    monkeypatch.setattr(
        "fieldwise.automatic.trial.calibrated", lambda _, z, *__, **___: (line.logit(z), line)
    )
    result = run(log)
    test = log.sort("timestamp").tail(200)
    y, z = test["liked"].to_numpy(), result.best.score(test)
    record = result.best.about.calibration
    assert set(record.figures) == {"validation rows", "test rows"}
    figures = record.figures["test rows"]["liked"]
    assert figures["before"]["logloss"] == pytest.approx(
        log_loss(y, 1 / (1 + np.exp(-z))), rel=1e-5
    )
    assert figures["after"]["logloss"] == pytest.approx(
        log_loss(y, result.best.predict(test)), rel=1e-5
    )
    assert figures["after"]["logloss"] == pytest.approx(result.chosen.metrics["logloss"].value)
    said = f"test logloss {figures['before']['logloss']:.4f} without it, {figures['after']['logloss']:.4f} with it"
    assert any(said in sentence for sentence in result.sentences())


def test_a_calibration_is_kept_only_where_it_helps_rows_that_it_did_not_see():
    rng = np.random.default_rng(0)
    z = rng.normal(0, 1, 3000)
    y = (rng.random(3000) < 1 / (1 + np.exp(-z))).astype(float)
    assert calibrated(y, z, seed=0)[1] is None
    mapped, line = calibrated(y, 3 * z + 1, seed=0)
    assert line.slope == pytest.approx(1 / 3, abs=0.05)
    folds = np.random.default_rng(0).permutation(3000) % 5
    others = fit_platt(y[folds != 2], 3 * z[folds != 2] + 1)
    np.testing.assert_allclose(mapped[folds == 2], others.logit(3 * z[folds == 2] + 1))
    assert log_loss(y, 1 / (1 + np.exp(-mapped))) < log_loss(y, 1 / (1 + np.exp(-(3 * z + 1))))
    assert calibrated(y[:1999], 3 * z[:1999] + 1, seed=0)[1] is None
    assert calibrated(y[:2000], 3 * z[:2000] + 1, seed=0)[1] is not None


def test_the_bundle_has_learned_training_and_validation_rows(made):
    result, _, _ = made
    line, judged = result.chosen, result.judged
    assert line.model == f"{judged.model}, all rows"
    assert line.all_rows
    assert [other.model for other in result.lines if other.all_rows] == [line.model]
    assert result.best.about.run["refit"]["rows"] == 1800
    assert line.valid == judged.valid
    text = " ".join(repr(result).split())
    assert f"the bundle is {judged.model} trained again on training and validation rows" in text


def test_a_run_that_took_all_its_epochs_is_a_warning(made):
    result, _, _ = made
    lines = tuple(dataclasses.replace(one, stopped="epochs", epochs=100) for one in result.lines)
    ended = dataclasses.replace(result, lines=lines).sentences()
    unit = "tree" if result.judged.model.startswith("LightGBM") else "epoch"
    said = f"{result.judged.model} ended after all its 100 {unit}s, and more may improve it"
    assert any(one.startswith(said) for one in ended)
    lines = tuple(dataclasses.replace(line, epochs=1) for line in lines)
    said = f"{result.judged.model} ended after its only {unit}, and more may improve it"
    assert any(
        sentence.startswith(said)
        for sentence in dataclasses.replace(result, lines=lines).sentences()
    )


@pytest.mark.usefixtures("few_models")
def test_without_time_for_it_the_bundle_is_of_the_training_rows(log, monkeypatch):
    monkeypatch.setattr(schedule, "seconds_on_all", lambda one: 1e6 if one.title == "LR" else 0.0)
    monkeypatch.setattr(
        "fieldwise.automatic.trial.Trials.chosen", property(lambda tried: tried.trials[1])
    )
    said: list[str] = []
    result = run_auto(log, AutoSettings(label="liked", minutes=MINUTES), said.append)
    assert result.chosen is result.judged
    assert "refit" not in result.best.about.run
    assert not result.recipe.training.refit
    assert any(
        "LR is not trained again on training and validation rows: that takes about" in words
        for words in said
    )


@pytest.mark.usefixtures("few_models")
def test_what_is_called_best_is_what_is_saved(monkeypatch, tmp_path):
    """An exclusive or of two numbers, which trees find and FM and LR do not."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3000))
    y = ((a > 0) ^ (b > 0)) ^ (rng.random(3000) < 0.1)
    frame = pl.DataFrame({"a": a, "b": b, "y": y.astype(int)})
    result = fieldwise.auto(frame, "y", minutes=5, out=tmp_path / "out", quiet=True)
    assert result.judged.model.startswith("LightGBM")
    assert result.judged.valid == min(line.valid for line in result.lines if not line.all_rows)
    assert "LightGBM" in result.sentences()[0]
    saved = Bundle.load(tmp_path / "out" / "bundle")
    assert type(saved.settings).__name__ == "LightGBM"
    np.testing.assert_array_equal(saved.score(frame), result.best.score(frame))
    assert 'name = "lightgbm"' in (tmp_path / "out" / "recipe.toml").read_text()
    assert (tmp_path / "out" / "report.html").is_file()
    assert result.recipe.training.refit
