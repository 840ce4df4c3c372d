"""Exported networks run without fieldwise and give the bundle's logits."""

import contextlib
import dataclasses
import json
import logging
import math
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from ids import ITEM, USER
from random_bundle import random_bundle

from fieldwise import (
    AFM,
    LR,
    AutoIntPlus,
    Bag,
    Bundle,
    BundleError,
    Categorical,
    ConfigError,
    DataError,
    Encoder,
    Label,
    MissingExtraError,
    Numeric,
    Schema,
    Sequence,
)
from fieldwise.bundle import export
from fieldwise.bundle.export import export_bundle
from fieldwise.evaluation.calibration import Isotonic, Platt
from fieldwise.models.mean_with_lr import mean_with_lr

SCHEMA = Schema(
    fields=(USER, Bag("tags", role="user"), ITEM, Numeric("price", role="item")),
    label=Label("click"),
)


def make(settings, rows=20):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "user": [f"u{k}" for k in rng.integers(0, 5, 40)],
            "tags": [
                "|".join(f"t{k}" for k in rng.integers(0, 4, n)) for n in rng.integers(0, 4, 40)
            ],
            "item": [f"i{k}" for k in rng.integers(0, 5, 40)],
            "price": rng.normal(size=40),
        }
    )
    return random_bundle(settings, SCHEMA, frame, samples=frame.head(rows))


def run_example(folder):
    """The example, where `import fieldwise` fails."""
    code = "import sys; sys.modules['fieldwise'] = None; exec(open('example.py').read())"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_compiled_library_runs_elsewhere(tmp_path):
    bundle = make(AFM(embedding_dim=4, attention_dim=3))
    assert export_bundle(bundle, tmp_path / "e", "aoti") < 1e-5
    assert float(run_example(tmp_path / "e").split()[-1]) < 1e-5


@pytest.mark.slow
def test_no_compiler_is_said(tmp_path):
    make(AFM(embedding_dim=4, attention_dim=3)).save(tmp_path / "bundle")
    arguments = ["export", str(tmp_path / "bundle"), "--out", str(tmp_path / "e"), "--to", "aoti"]
    result = subprocess.run(
        [sys.executable, "-m", "fieldwise", *arguments],
        env={"PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 2
    assert "needs a working C++ compiler" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "e").exists()


@pytest.fixture
def quick(monkeypatch):
    """A format that takes no seconds to make, in the place of ONNX."""

    def maker(network, table, path):
        path.write_bytes(b"a network")
        return lambda batch: network(*batch).detach().numpy()

    monkeypatch.setitem(export._MAKERS, "onnx", maker)


def test_an_export_replaces_an_export_and_nothing_else(tmp_path, quick):
    bundle = make(AFM(embedding_dim=4, attention_dim=3))
    folder = tmp_path / "e"
    folder.mkdir()
    (folder / "mine.txt").write_text("x")
    with pytest.raises(BundleError, match="needs a folder of its own"):
        export_bundle(bundle, folder)
    assert [p.name for p in folder.iterdir()] == ["mine.txt"]
    (folder / "mine.txt").unlink()
    export_bundle(bundle, folder)
    (folder / "example.py").unlink()
    export_bundle(bundle, folder)
    assert (folder / "example.py").exists()
    assert [p.name for p in tmp_path.iterdir()] == ["e"]


def test_invalid_exports_are_errors(tmp_path, quick, monkeypatch):
    bundle = make(AFM(embedding_dim=4, attention_dim=3), rows=1)
    with pytest.raises(ConfigError, match="did you mean 'onnx'"):
        export_bundle(bundle, tmp_path / "e", "onx")
    with pytest.raises(DataError, match="at least 2 sample rows, found 1"):
        export_bundle(bundle, tmp_path / "e")
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(DataError, match="must have the same logits"):
        export_bundle(make(AFM(embedding_dim=4, attention_dim=3)), tmp_path / "e")
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fieldwise\[onnx\]'"):
        export_bundle(make(AFM(embedding_dim=4, attention_dim=3)), tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


def test_only_the_exporters_are_quiet(tmp_path, quick, monkeypatch, caplog):
    loggers = [
        logging.getLogger(name)
        for name in ("torch", "torch.onnx", "torch.onnx.one", "onnxscript", "a.server")
    ]
    before = [logger.level for logger in loggers]
    maker = export._MAKERS["onnx"]

    def told(*given):
        for logger in loggers:
            logger.warning("of %s", logger.name)
        return maker(*given)

    monkeypatch.setitem(export._MAKERS, "onnx", told)
    export_bundle(make(AFM(embedding_dim=4, attention_dim=3)), tmp_path / "e")
    assert caplog.messages == ["of a.server"]
    assert [logger.level for logger in loggers] == before


ODD = Schema(
    fields=(
        Categorical("user", role="user"),
        Categorical("flag"),
        Categorical("shop", hash_buckets=7),
        Categorical("item", role="item"),
        Bag("tags", role="item", separator=",", pooling="sum"),
        Sequence("history", role="user", max_length=3, shares="item"),
        Numeric("price", role="item", transform="log", missing="vector"),
        Numeric("amount", number_format="1.234,5"),
        Numeric("age", encoding="quantile", bins=4),
        Numeric("years", column="age", encoding="piecewise", bins=4),
        Numeric("weight", number_format="1,234.5 Kg"),
    ),
    label=Label("click"),
    missing=("NULL", " n/a", "-", "-999"),
    more_labels=(Label("buy"), Label("minutes", task="regression", scale=250.0)),
)
CALIBRATION = {
    "click": Platt(slope=1.5, intercept=-0.5),
    "buy": Isotonic(at=(-2, 0, 1), probability=(0.1, 0.4, 0.8)),
}
TEXTS = [
    "a",
    "b",
    " a",
    "a ",
    "",
    "new",
    "7",
    "1.5",
    "0.00001",
    "true",
    "TRUE",
    "None",
    "\u00e9",
    "a,b",
    "a|b",
    "nan",
]
PLAIN = [
    None,
    7,
    7.0,
    -1,
    0,
    2**53 + 1,
    1.5,
    1e15 + 0.5,
    1.5e20,
    1e-5,
    1.2345e-5,
    -2.5e-5,
    1e-7,
    True,
    False,
    math.nan,
]
WRONG = [{"a": 1}, [["a"]], [{"a": 1}]]
TEXT_NUMBERS = [
    "1", " 2.5 ", "", " ", "1e3", ".5", "5.", "+1", "-0", "1_0", "0x1", "x", "1,5", "1.234,5", "12.34", "nan",
    "inf", "null", "N/A ", "-", "NA", "-999", "-999.0",
]  # fmt: skip
WEIGHTS = [
    "12 kg",
    "kg 3",
    "-KG2.5",
    "- 2 kg",
    "1,200.5kg",
    "7",
    "7 g",
    "kg",
    "1,20 kg",
    "1 2 kg",
    "\u22121 kg",
    "+-1 kg",
]
NUMBERS = [
    None,
    1,
    -3,
    2.5,
    1e30,
    1e39,
    math.nan,
    math.inf,
    True,
    False,
    2**70,
    *TEXT_NUMBERS,
    "1.234.567,25",
    "-7,5",
    -999,
    -999.0,
]
MANY = [
    None, [], ["a"], ["a", "b", "a"], ["a", None, "", " b "], [7, 8], [7.0, 1.5], [True], [None], "a,b,,c",
    "a| b|new", ["b"] * 9,
]  # fmt: skip


def odd_rows(count):
    rng = np.random.default_rng(0)
    cells = {
        "user": TEXTS + PLAIN + WRONG[:2], "flag": ["True", "false", "TRUE", "x", "", *PLAIN],
        "shop": TEXTS + PLAIN, "item": TEXTS + PLAIN, "tags": TEXTS + PLAIN + MANY + WRONG,
        "history": TEXTS + PLAIN + MANY, "price": NUMBERS + WRONG[:2], "amount": NUMBERS, "age": NUMBERS,
        "weight": WEIGHTS + NUMBERS,
    }  # fmt: skip
    # A cell in 12 is odd: else hardly a row would be without an error.
    usual = {"user": "a", "flag": True, "shop": "s", "item": "b", "tags": ["a"], "history": "a|b"}
    usual |= {"price": 2.0, "amount": "3,5", "age": 30, "weight": "5 kg"}

    def cell(column):
        odd = cells[column]
        return odd[rng.integers(len(odd))] if rng.random() < 0.25 else usual[column]

    return [{column: cell(column) for column in cells} for _ in range(count)]


def odd_bundle():
    rng = np.random.default_rng(1)
    many = ["a", "b", "a,b", "b,c,a", None]
    columns = {
        "user": ["a", "b", "7", "1.5", "0.00001", "9007199254740993", "1e-7"], "flag": ["True", "False"],
        "shop": ["a", "s", "t"], "item": ["a", "b", "7", "1.5", "true"], "tags": many,
        "history": ["a|b", "b", "7|a|b|a"], "price": [1.5, 2.0, 300.0, None], "amount": ["1.234,5", "3,5", "7"],
        "age": [1, 20, 30, 40, 50, 60], "weight": ["5 kg", "1,000 kg", "kg 7", "2.5", "null"],
    }  # fmt: skip
    frame = pl.DataFrame(
        {name: [pool[k] for k in rng.integers(0, len(pool), 200)] for name, pool in columns.items()}
    )
    settings = AFM(embedding_dim=4, attention_dim=3)
    return random_bundle(settings, ODD, frame, samples=frame.head(20), calibration=CALIBRATION)


ELSEWHERE = """
import json, sys
sys.modules |= dict.fromkeys(["fieldwise", "torch", "polars", "pandas"])
import encode
rows, good = json.load(open("rows.json")), []
for number, row in enumerate(rows):
    try:
        encode.encode([row])
        good.append(number)
    except ValueError as e:
        assert "row 0, column" in str(e), e
print(json.dumps([good, encode.predict([rows[number] for number in good]).tolist()]))
"""


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_onnx_and_raw_rows_run_elsewhere(tmp_path, caplog, capfd, count):
    """Odd rows: the predictions for a table with each of them, or an error where that is one.

    Every model's program is compared in models/test_onnx.py.
    """
    pytest.importorskip(
        "onnxruntime", reason="ONNX Runtime is absent: pip install 'fieldwise[onnx]'"
    )
    bundle, folder = odd_bundle(), tmp_path / "e"
    assert export_bundle(bundle, folder) < 1e-3
    assert caplog.record_tuples == []
    assert capfd.readouterr() == ("", "")
    names = {
        "model.onnx",
        "samples.npz",
        "encoder.json",
        "schema.toml",
        "example.py",
        "export.json",
    }
    assert {p.name for p in folder.iterdir()} == names | {"encode.py", "labels.json", "layout.json"}
    out = run_example(folder)
    assert out.startswith("20 rows, largest difference ")
    assert float(out.split()[-1]) < 1e-3
    samples = np.load(folder / "samples.npz")
    np.testing.assert_allclose(
        samples["logit"], bundle.score(bundle.samples) * [1, 1, 250], rtol=1e-4, atol=1e-4
    )
    assert Schema.from_toml((folder / "schema.toml").read_text()) == ODD
    encoder = Encoder.from_json((folder / "encoder.json").read_text())
    np.testing.assert_array_equal(encoder.transform(bundle.samples).ids, samples["ids"])
    rows = odd_rows(count)
    (folder / "rows.json").write_text(json.dumps(rows))
    expected = {}
    for number, row in enumerate(rows):
        with contextlib.suppress(DataError, pl.exceptions.PolarsError, TypeError):
            expected[number] = bundle.predict(pl.DataFrame([row]))[0]
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    good, result = json.loads(done.stdout)
    different = {n: rows[n] for n in set(good) ^ set(expected)}
    assert not different
    assert 0.6 * len(rows) < len(good) < len(rows)
    scale = [1, 1, 250]  # of the labels: a rate, a rate, a number
    np.testing.assert_allclose(
        np.divide(result, scale), np.divide(list(expected.values()), scale), atol=2e-6, rtol=1e-4
    )
    assert all(len(np.unique(np.round(column, 4))) > 10 for column in np.transpose(result))


@pytest.mark.parametrize("share", [0.3, 0.0])
def test_a_mean_with_lr_predicts_elsewhere_what_it_predicts_here(tmp_path, share):
    """From raw rows, with unseen values, to probabilities: by encode.py and ONNX, and by the parts' own formula."""
    pytest.importorskip(
        "onnxruntime", reason="ONNX Runtime is absent: pip install 'fieldwise[onnx]'"
    )
    plain = make(AutoIntPlus(embedding_dim=4, layers=1, attention_dim=4, hidden=(6,)))
    lr = random_bundle(LR(), SCHEMA, plain.samples, encoder=plain.encoder, seed=2)
    network = mean_with_lr(plain.network, plain.encoder.layout, share).eval()
    network.lr.load_state_dict(lr.network.first_order.state_dict())
    dataclasses.replace(plain, network=network).save(tmp_path / "b")
    bundle, folder = Bundle.load(tmp_path / "b"), tmp_path / "e"
    assert export_bundle(bundle, folder) < 1e-6
    unseen = {"user": "new", "tags": "t1|new", "item": None, "price": None}
    rows = [*bundle.samples.select("user", "tags", "item", "price").to_dicts(), unseen]
    (folder / "rows.json").write_text(json.dumps(rows))
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    good, result = json.loads(done.stdout)
    assert good == list(range(len(rows)))
    frame = pl.DataFrame(rows)
    logit = share * plain.score(frame).astype(np.float64) + (1 - share) * lr.score(frame)
    expected = 1 / (1 + np.exp(-logit))
    assert np.ptp(expected) > 0.1
    np.testing.assert_allclose(bundle.predict(frame), expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(result, bundle.predict(frame), rtol=0, atol=1e-6)
