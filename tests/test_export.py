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
import torch
from ids import ITEM, USER

from fieldwise import AFM, Bag, Bundle, Categorical, IntTower, Label, Numeric, Schema, Sequence
from fieldwise.bundle import export
from fieldwise.bundle.export import export_bundle
from fieldwise.data.encode.encoder import Encoder
from fieldwise.errors import BundleError, ConfigError, DataError, MissingExtraError
from fieldwise.evaluation.calibration import Isotonic, Platt
from fieldwise.models.build import build_network

SCHEMA = Schema(fields=(USER, Bag("tags", role="user"), ITEM, Numeric("price", role="item")), label=Label("click"))


def make(settings, rows=20):
    rng = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "user": [f"u{k}" for k in rng.integers(0, 5, 40)],
            "tags": ["|".join(f"t{k}" for k in rng.integers(0, 4, n)) for n in rng.integers(0, 4, 40)],
            "item": [f"i{k}" for k in rng.integers(0, 5, 40)],
            "price": rng.normal(size=40),
        }
    )
    encoder = Encoder.fit(frame, SCHEMA)
    network = build_network(settings, encoder.layout, 0).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for p in network.parameters():
            p.normal_(std=0.4)
    return Bundle(SCHEMA, encoder, settings, network, frame.head(rows), {})


def scores_of_onnx(folder):
    import onnxruntime

    samples = dict(np.load(folder / "samples.npz"))
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    return session.run(None, {one.name: samples[one.name] for one in session.get_inputs()})[0]


@pytest.mark.usefixtures("onnx")
def test_numbers_are_exported_in_the_labels_unit(tmp_path):
    bundle = make(AFM(embedding_dim=4))
    label = Label("minutes", task="regression", scale=250.0)
    bundle = dataclasses.replace(bundle, schema=dataclasses.replace(SCHEMA, label=label))
    assert export_bundle(bundle, tmp_path / "out") < 1e-4
    np.testing.assert_allclose(scores_of_onnx(tmp_path / "out"), bundle.predict(bundle.samples), rtol=1e-4, atol=1e-3)


@pytest.fixture
def onnx():
    pytest.importorskip("onnxruntime", reason="ONNX Runtime is absent: pip install 'fieldwise[onnx]'")


def run_example(folder):
    """The example, where `import fieldwise` fails."""
    code = "import sys; sys.modules['fieldwise'] = None; exec(open('example.py').read())"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_onnx_runs_elsewhere(tmp_path, onnx, caplog, capfd):
    """Every model's program is compared in models/test_onnx.py."""
    bundle = make(IntTower(embedding_dim=4, hidden=(5, 4), user_heads=2, item_heads=2, head_dim=3, cir_weight=0))
    assert export_bundle(bundle, tmp_path / "e") < 1e-5
    assert caplog.record_tuples == []
    assert capfd.readouterr() == ("", "")
    names = {"model.onnx", "samples.npz", "encoder.json", "schema.toml", "example.py", "export.json"}
    names |= {"encode.py", "labels.json", "layout.json"}
    assert {p.name for p in (tmp_path / "e").iterdir()} == names
    out = run_example(tmp_path / "e")
    assert out.startswith("20 rows, largest difference ")
    assert float(out.split()[-1]) < 1e-5
    samples = np.load(tmp_path / "e" / "samples.npz")
    np.testing.assert_allclose(samples["logit"], bundle.score(bundle.samples), rtol=1e-6)
    assert Schema.from_toml((tmp_path / "e" / "schema.toml").read_text()) == SCHEMA
    encoder = Encoder.from_json((tmp_path / "e" / "encoder.json").read_text())
    np.testing.assert_array_equal(encoder.transform(bundle.samples).ids, samples["ids"])


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
        [sys.executable, "-m", "fieldwise", *arguments], env={"PATH": ""}, capture_output=True, text=True, check=False
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


def test_what_cannot_be_exported(tmp_path, monkeypatch):
    bundle = make(AFM(embedding_dim=4, attention_dim=3), rows=1)
    with pytest.raises(ConfigError, match="did you mean 'onnx'"):
        export_bundle(bundle, tmp_path / "e", "onx")
    with pytest.raises(DataError, match="at least 2 sample rows, found 1"):
        export_bundle(bundle, tmp_path / "e")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'fieldwise\[onnx\]'"):
        export_bundle(make(AFM(embedding_dim=4, attention_dim=3)), tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


def test_only_the_exporters_are_quiet(tmp_path, quick, monkeypatch, caplog):
    loggers = [logging.getLogger(name) for name in ("torch", "torch.onnx", "torch.onnx.one", "onnxscript", "a.server")]
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


def test_another_logit_is_no_export(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(DataError, match="must have the same logits"):
        export_bundle(make(AFM(embedding_dim=4, attention_dim=3)), tmp_path / "e")
    assert list(tmp_path.iterdir()) == []


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
    ),
    label=Label("click"),
)
TEXTS = ["a", "b", " a", "a ", "", "new", "7", "1.5", "0.00001", "true", "TRUE", "None", "\u00e9", "a,b", "a|b", "nan"]
PLAIN = [None, 7, 7.0, -1, 0, 2**53 + 1, 1.5, 1e15 + 0.5, 1.5e20, 1e-5, 1.2345e-5, -2.5e-5, 1e-7, True, False, math.nan]
WRONG = [{"a": 1}, [["a"]], [{"a": 1}]]
TEXT_NUMBERS = [
    "1", " 2.5 ", "", " ", "1e3", ".5", "5.", "+1", "-0", "1_0", "0x1", "x", "1,5", "1.234,5", "12.34", "nan",
    "inf",
]  # fmt: skip
NUMBERS = [None, 1, -3, 2.5, 1e30, 1e39, math.nan, math.inf, True, False, 2**70, *TEXT_NUMBERS, "1.234.567,25", "-7,5"]
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
    }  # fmt: skip
    # A cell in 12 is odd: else hardly a row would be without an error.
    usual = {"user": "a", "flag": True, "shop": "s", "item": "b", "tags": ["a"], "history": "a|b"}
    usual |= {"price": 2.0, "amount": "3,5", "age": 30}

    def cell(column):
        odd = cells[column]
        return odd[rng.integers(len(odd))] if rng.random() < 0.25 else usual[column]

    return [{column: cell(column) for column in cells} for _ in range(count)]


def odd_bundle(calibration):
    rng = np.random.default_rng(1)
    many = ["a", "b", "a,b", "b,c,a", None]
    columns = {
        "user": ["a", "b", "7", "1.5", "0.00001", "9007199254740993", "1e-7"], "flag": ["True", "False"],
        "shop": ["a", "s", "t"], "item": ["a", "b", "7", "1.5", "true"], "tags": many,
        "history": ["a|b", "b", "7|a|b|a"], "price": [1.5, 2.0, 300.0, None], "amount": ["1.234,5", "3,5", "7"],
        "age": [1, 20, 30, 40, 50, 60],
    }  # fmt: skip
    frame = pl.DataFrame({name: [pool[k] for k in rng.integers(0, len(pool), 200)] for name, pool in columns.items()})
    encoder, settings = Encoder.fit(frame, ODD), AFM(embedding_dim=4, attention_dim=3)
    network = build_network(settings, encoder.layout, 0).eval()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(1)
        for p in network.parameters():
            p.normal_(std=0.4)
    return Bundle(ODD, encoder, settings, network, frame.head(20), {}, calibration)


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


@pytest.mark.usefixtures("onnx")
@pytest.mark.parametrize(
    ("kind", "count"), [("platt", 50), ("isotonic", 300), pytest.param("isotonic", 2000, marks=pytest.mark.slow)]
)
def test_raw_rows_are_predicted_elsewhere(tmp_path, kind, count):
    """Odd rows: the probability of a table with each of them, or an error where that is one."""
    calibrations = {
        "platt": Platt(slope=1.5, intercept=-0.5),
        "isotonic": Isotonic(at=(-2, 0, 1), probability=(0.1, 0.4, 0.8)),
    }
    bundle = odd_bundle({"click": calibrations[kind]})
    export_bundle(bundle, tmp_path / "e")
    rows = odd_rows(count)
    (tmp_path / "e" / "rows.json").write_text(json.dumps(rows))
    expected = {}
    for number, row in enumerate(rows):
        with contextlib.suppress(DataError, pl.exceptions.PolarsError, TypeError):
            expected[number] = bundle.predict(pl.DataFrame([row])).item()
    done = subprocess.run(
        [sys.executable, "-c", ELSEWHERE], cwd=tmp_path / "e", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    good, result = json.loads(done.stdout)
    different = {n: rows[n] for n in set(good) ^ set(expected)}
    assert not different
    assert 0.6 * len(rows) < len(good) < len(rows)
    np.testing.assert_allclose(result, list(expected.values()), atol=2e-6)
    assert len(np.unique(np.round(result, 4))) > 10
