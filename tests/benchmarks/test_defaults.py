"""The defaults' table: what meets a target, what scikit-learn reads, that runs are kept."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from benchmarks.defaults import __main__ as command
from benchmarks.defaults.baselines import one_hot
from benchmarks.defaults.runs import Settings, applies, recipe_for, rows_of
from benchmarks.defaults.store import Found, Place
from benchmarks.defaults.tables import COUNTED, TABLES, Corrections, DevTable, corrected
from benchmarks.defaults.targets import CALIBRATION, chance, difference, judge, judge_time

from fieldwise import Bag, Categorical, Label, Numeric, Schema
from fieldwise.data.prepare.prepared import prepare
from fieldwise.data.prepare.split_settings import ColumnSplit
from fieldwise.evaluation import sigmoid

RNG = np.random.default_rng(0)
TRUE = RNG.normal(size=4000)
Y = (RNG.random(4000) < sigmoid(TRUE)).astype(float)


def planted(name, logit, seed=0, *, y=Y, valid=0.5, ece=0.0):
    about = {"table": "t", "model": name, "seed": seed, "valid": {"logloss": valid}, "test": {"ece": ece}}
    loss = float((np.logaddexp(0, logit) - y * logit).mean())
    about["test"] |= {"auc": 0.5, "logloss": loss}
    return Found(about, y, logit)


def test_a_difference_is_the_mean_over_rows_and_seeds():
    ours = [planted("a", TRUE), planted("a", 2 * TRUE, 1)]
    found = difference(ours, [planted("b", 0 * TRUE)])  # theirs has one run for all seeds
    by_hand = [np.mean(-np.log(sigmoid(np.where(Y == 1, k * TRUE, -k * TRUE)))) - np.log(2) for k in (1, 2)]
    assert found.value == pytest.approx(np.mean(by_hand))
    assert found.low < found.value < found.high < 0
    rows = np.mean([np.logaddexp(0, k * TRUE) - Y * k * TRUE for k in (1, 2)], axis=0)
    assert found.high - found.low == pytest.approx(2 * 1.96 * rows.std() / np.sqrt(len(rows)), rel=0.15)


def test_seeds_may_have_rows_of_their_own():
    other = 1 - Y
    ours = [planted("a", TRUE), planted("a", -TRUE, 1, y=other)]
    theirs = [planted("b", 0 * TRUE), planted("b", 0 * TRUE, 1, y=other)]
    assert difference(ours, theirs).value == pytest.approx(difference(ours[:1], theirs[:1]).value)
    with pytest.raises(SystemExit, match="other test rows do not compare: t/a-1 and t/b-0"):
        difference(ours, theirs[:1])


def test_planted_results_meet_and_miss_the_targets():
    noise = 0.01 * RNG.normal(size=len(Y))
    runs = {
        "lr": [planted("lr", 0.5 * TRUE, valid=0.3)],  # poor on the test rows, but chosen by the validation rows
        "fm": [planted("fm", TRUE, valid=0.5)],
        "afm": [planted("afm", TRUE + noise, valid=0.5)],
        "autoint-plus": [planted("autoint-plus", 0 * TRUE + 3, valid=0.9, ece=0.049)],
        "constant": [planted("constant", 0 * TRUE)],
        "sklearn-lr": [planted("sklearn-lr", TRUE)],
        "lightgbm": [planted("lightgbm", 0.9 * TRUE)],
    }
    found = {(v.target, v.model): v for v in judge(runs, 20_000)}
    below = {model: v.met for (target, model), v in found.items() if target == "below the constant"}
    assert below == {"lr": True, "fm": True, "afm": True, "autoint-plus": False}
    assert not found["LR no worse than scikit-learn's", "lr"].met
    assert found["AFM no worse than FM", "afm"].met
    two = found["AutoInt+, IntTower no worse than FM, LR", "autoint-plus"]
    assert (two.met, two.against) == (False, "fm")  # the better of the two on the test rows
    best = found["the best of ours no worse than LightGBM", "lr"]
    assert not best.met
    calibration = {model: v.met for (target, model), v in found.items() if target == CALIBRATION}
    assert calibration == {"lr": True, "fm": True, "afm": True, "autoint-plus": False}
    small = [v.met for v in judge(runs, 10_000) if v.target == CALIBRATION]
    assert all(small)  # .049 is below .05


def test_calibration_within_chance_is_met():
    tenth = np.tile(np.log(1 / 9), 300)
    few = planted("fm", tenth, y=np.repeat([1.0, 0.0], [36, 264]), ece=0.02)  # 12 % where 10 % were said
    by_hand = 1.96 * np.sqrt(0.09 / 300)  # one bin: |share - .1|, normal
    assert chance(few) == pytest.approx(by_hand, rel=0.2)
    many = planted("lr", np.tile(tenth, 100), y=np.tile(few.y, 100), ece=0.0201)
    found = {v.model: (v.met, v.mean) for v in judge({"fm": [few], "lr": [many]}, 20_000) if v.target == CALIBRATION}
    assert found == {"fm": (True, True), "lr": (False, False)}
    few.about["test"]["ece"] = 0.0201
    (found,) = (v for v in judge({"fm": [few]}, 20_000) if v.target == CALIBRATION)
    assert (found.met, found.mean) == (True, False)


def timed(name, aucs, seconds, cpu):
    found = planted(name, TRUE)
    history = [{"seconds": s, "metrics": {"auc": auc}} for auc, s in zip(aucs, seconds, strict=True)]
    found.about.update(history=history, seconds=seconds[-1], cpu_seconds=cpu)
    return found


def test_time_is_counted_to_the_same_auc():
    before = timed("fm", [0.6, 0.7, 0.65], [10.0, 20.0, 30.0], 15.0)  # half of its time waited: .7 after 10 s
    quick = timed("fm", [0.65, 0.72], [7.0, 14.0], 14.0)
    slow = timed("fm", [0.65, 0.72], [10.0, 16.0], 16.0)
    never = timed("fm", [0.65, 0.69], [7.0, 14.0], 14.0)
    ratios = [next(iter(judge_time({"fm": [run]}, {"fm": [before]}))) for run in (quick, slow, never)]
    assert [one.value for one in ratios] == pytest.approx([1.4, 1.6, np.inf])
    assert [one.met for one in ratios] == [True, False, False]


def test_a_tie_is_met_though_its_mean_is_not_better():
    noise = 0.05 * RNG.normal(size=len(Y))
    runs = {"afm": [planted("afm", TRUE + noise)], "fm": [planted("fm", TRUE)]}
    one = next(v for v in judge(runs, 1000) if v.target == "AFM no worse than FM")
    assert one.found.low <= 0 <= one.found.high
    assert one.met
    assert one.mean == (one.found.value <= 0)


def test_what_scikit_learn_reads():
    schema = Schema(
        fields=(Categorical("c"), Numeric("x", transform="none"), Bag("m", pooling="mean"), Bag("s", pooling="sum")),
        label=Label("y"),
    )
    frame = pl.DataFrame(
        {
            "c": ["a", "b", "a", "b", "a", "new"],
            "x": [1.5, 2.0, 3.0, 4.0, 5.0, None],
            "m": ["p|q", "p", "q", "", "p|q", "q"],
            "s": ["p|q", "p", "q", "", "p|q", "q"],
            "y": [0, 1, 0, 1, 0, 1],
            "part": ["train"] * 2 + ["valid"] * 2 + ["test"] * 2,
        }
    )
    prepared = prepare(frame, schema, split=ColumnSplit(column="part"), seed=0)
    layout = prepared.encoder.layout
    train, test = (one_hot(part.table).toarray() for part in (prepared.train, prepared.test))
    assert train.shape == (2, layout.num_rows)
    first = [train[0, f.offset : f.offset + f.rows] for f in layout.fields]
    assert sorted(first[0][first[0] > 0]) == [1.0]
    assert sorted(first[1][first[1] > 0]) == [1.5]
    assert sorted(first[2][first[2] > 0]) == [0.5, 0.5]
    assert sorted(first[3][first[3] > 0]) == [1.0, 1.0]
    same = [
        np.array_equal(train[0, f.offset : f.offset + f.rows], test[0, f.offset : f.offset + f.rows])
        for f in layout.fields
    ]
    assert same == [True, False, True, True]  # another number
    assert test[1, layout.fields[1].offset : layout.fields[1].offset + layout.fields[1].rows].sum() == 0  # absent


def toy(rows=400):
    def read(_: Path, seed: int) -> pl.DataFrame:
        rng = np.random.default_rng(seed)
        user, item = rng.integers(0, 20, rows), rng.integers(0, 10, rows)
        y = rng.random(rows) < sigmoid(user / 5 - 2.0)
        columns = {"user_id": user, "item_id": item, "size": rng.normal(size=rows), "note": "x", "label": y.astype(int)}
        return pl.DataFrame(columns)

    corrections = Corrections(label=Label("label"), leave_out=("note",), group="user_id", keys=("user_id", "item_id"))
    return DevTable(name="toy", about="toy", read=read, corrections=corrections)


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(TABLES, "toy", toy())

    def make(*words):
        where = ["--tables", "toy", "--store", str(tmp_path), "--data-dir", str(tmp_path)]
        assert command.main(["run", *where, *words]) == 0
        return [line for line in capsys.readouterr().err.splitlines() if line.startswith("toy")]

    return make


def test_runs_are_kept_by_tag_and_baselines_for_all_tags(run, tmp_path, capsys):
    words = ("--models", "lr,constant,sklearn-lr", "--seeds", "2", "--set", "training.epochs=2")
    assert [line.split(":")[0] for line in run(*words, "--tag", "one")] == [
        *("toy lr seed 0", "toy constant seed 0", "toy sklearn-lr seed 0", "toy lr seed 1"),
    ]
    assert run(*words, "--tag", "one") == []
    (tmp_path / "one" / "toy" / "lr-1.json").unlink()  # as if the run had been cut off
    assert [line.split(":")[0] for line in run(*words, "--tag", "one")] == ["toy lr seed 1"]
    assert [line.split(":")[0] for line in run(*words, "--tag", "two")] == ["toy lr seed 0", "toy lr seed 1"]
    kept = [Place(tmp_path, tag, "toy", "lr-0").get() for tag in ("one", "two")]
    np.testing.assert_array_equal(kept[0].logit, kept[1].logit)
    assert kept[0].about["recipe"]["training"]["epochs"] == 2
    capsys.readouterr()
    where = ["--tables", "toy", "--store", str(tmp_path), "--tag", "one"]
    for against in ([], ["--against", "two"]):
        assert command.main(["show", *where, *against]) == 0
        text = capsys.readouterr().out
        assert "| toy | toy | 280 | 40 | 80 | 3 | " in text
        assert "| below the constant | " in text


def test_the_page_sets_now_beside_before(run, tmp_path, monkeypatch):
    few = "--set", "training.epochs=3"
    run("--models", "lr,fm,constant,sklearn-lr", "--seeds", "2", "--tag", "now", *few)
    run("--models", "lr,fm", "--seeds", "1", "--tag", "before", *few, "--set", "training.learning_rate=1e-9")
    monkeypatch.setattr("benchmarks.defaults.page.COUNTED", ("toy",))
    where = ["--json", str(tmp_path / "r.json"), "--page", str(tmp_path / "p.md")]
    assert command.main(["write", "--tag", "now", "--tables", "toy", "--store", str(tmp_path), *where]) == 0
    written = (tmp_path / "p.md").read_text()
    assert command.main(["write", *where]) == 0  # from the results alone
    assert (tmp_path / "p.md").read_text() == written
    floor = Place(tmp_path, "baselines", "toy", next((tmp_path / "baselines" / "toy").glob("constant*")).stem).get()
    before = Place(tmp_path, "before", "toy", "lr-0").get()
    cell = f"{before.about['test']['auc']:.4f} / "
    worse = before.about["test"]["logloss"] >= floor.about["test"]["logloss"]
    cell += f"**{before.about['test']['logloss']:.4f}**" if worse else f"{before.about['test']['logloss']:.4f}"
    (row,) = (line for line in written.splitlines() if line.startswith("|  | before |"))
    assert row.split(" | ")[2] == cell
    assert [bool(one.strip()) for one in row.split("|")[3:-1]] == [True, True, *[False] * 7]  # LR and FM alone
    assert "| below the constant | " in written
    assert "| toy | toy | 280 | 40 | 80 | 3 | " in written
    assert next(line for line in written.splitlines() if line.startswith("| toy | toy |")).endswith("| 2 | 1 |")


def test_another_draw_of_rows_has_a_name_of_its_own(run, tmp_path):
    run("--models", "constant", "--seeds", "1", "--max-rows", "100")
    assert [p.name for p in (tmp_path / "baselines").iterdir()] == ["toy@100"]


def test_the_recipe_is_a_newcomers(tmp_path):
    settings = Settings(data_dir=tmp_path, store=tmp_path, tag="t", sets=("model.embedding_dim=4",))
    rows = rows_of(toy(), 0, settings)
    recipe = recipe_for(rows, "autoint-plus", 3, settings)
    assert (recipe.seed, recipe.rows_seed, recipe.model.embedding_dim) == (3, 0, 4)
    assert [f.name for f in recipe.schema.fields] == ["user_id", "item_id", "size"]
    assert applies("inttower", recipe.schema)
    only = Corrections(label=Label("label"), everything="context")
    assert not applies("inttower", corrected(toy().read(tmp_path, 0), only))


def test_twelve_tables_count():
    assert len(COUNTED) == 12
    assert set(COUNTED) <= set(TABLES)


@pytest.mark.parametrize("name", ["sim-1k"])
def test_a_simulated_table_has_the_rows_that_it_is_named_by(name, tmp_path):
    frame = TABLES[name].read(tmp_path, 1)
    assert frame["part"].value_counts().sort("part").rows() == [("test", 10_000), ("train", 1_000)]
    assert not {"title", "true_probability", "part"} & {
        f.column for f in corrected(frame, TABLES[name].corrections).fields
    }
