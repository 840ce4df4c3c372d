"""Exported networks run without fieldwise and give the bundle's logits."""

import dataclasses
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
import torch

from fieldwise import AFM, Bag, Bundle, Categorical, IntTower, Label, Numeric, Schema
from fieldwise.bundle import export
from fieldwise.bundle.export import export_bundle
from fieldwise.data.encode.encoder import Encoder
from fieldwise.errors import BundleError, ConfigError, DataError, MissingExtraError
from fieldwise.models.build import build_network

SCHEMA = Schema(
    fields=(
        Categorical("user", role="user"),
        Bag("tags", role="user"),
        Categorical("item", role="item"),
        Numeric("price", role="item"),
    ),
    label=Label("click"),
)


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


def test_onnx_runs_elsewhere(tmp_path, onnx):
    """Every model's program is compared in models/test_onnx.py."""
    bundle = make(IntTower(embedding_dim=4, hidden=(5, 4), user_heads=2, item_heads=2, head_dim=3, cir_weight=0))
    assert export_bundle(bundle, tmp_path / "e") < 1e-5
    names = {"model.onnx", "samples.npz", "encoder.json", "schema.toml", "example.py", "export.json"}
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
    found = subprocess.run(
        [sys.executable, "-m", "fieldwise", *arguments], env={"PATH": ""}, capture_output=True, text=True, check=False
    )
    assert found.returncode == 2
    assert "needs a working C++ compiler" in found.stderr
    assert "Traceback" not in found.stderr
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


def test_another_logit_is_no_export(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(export, "TOLERANCE", -1.0)
    with pytest.raises(DataError, match="must have the same logits"):
        export_bundle(make(AFM(embedding_dim=4, attention_dim=3)), tmp_path / "e")
    assert list(tmp_path.iterdir()) == []
