"""Models of a user's own: given, registered, named by a recipe, saved, loaded; and never imported for a file's sake."""

import copy
import dataclasses
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn

from fieldwise import (
    FM,
    Bundle,
    BundleError,
    Categorical,
    ConfigError,
    Label,
    Layout,
    Recommender,
    Schema,
    TrainingSettings,
    load_recipe,
    register_model,
    settings_of,
    simulate,
)
from fieldwise.cli import run
from fieldwise.config import given
from fieldwise.layers import FieldEmbedding
from fieldwise.models import registry
from fieldwise.models.registry import as_settings, import_model
from fieldwise.models.serialise import model_from_dict, model_name, model_to_dict
from fieldwise.runs.inputs import Inputs
from fieldwise.runs.records import run_key

SCHEMA = Schema(fields=(Categorical("user_id"), Categorical("item_id")), label=Label("liked"))
LOG = simulate(400, users=20, items=10)
SOURCE = """
import torch
from torch import nn
from fieldwise.layers import FieldEmbedding
from fieldwise.layout import Layout


class Mean(nn.Module):
    def __init__(self, layout: Layout, *, width: int = 3) -> None:
        super().__init__()
        self.embedding, self.out = FieldEmbedding(layout, width), nn.Linear(width, 1)

    def forward(self, batch):
        return self.out(self.embedding(batch).mean(1)).squeeze(1)
"""


class Pooled(nn.Module):
    def __init__(self, layout: Layout, *, width: int = 4, scale: float = 1.0) -> None:
        super().__init__()
        self.embedding, self.out, self.scale = (
            FieldEmbedding(layout, width),
            nn.Linear(width, 1),
            scale,
        )

    def forward(self, batch):
        return self.scale * self.out(self.embedding(batch).sum(1)).squeeze(1)


@dataclass(frozen=True)
class PooledSettings:
    width: int = 5

    def build(self, layout):
        return Pooled(layout, width=self.width)


class Column(Pooled):
    def forward(self, batch):
        return super().forward(batch).unsqueeze(1)


@pytest.fixture(autouse=True)
def nothing_registered(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", {})


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module of one's own in the working directory, imported by nobody."""
    (tmp_path / "mine_for_tests.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    yield "mine_for_tests"
    sys.modules.pop("mine_for_tests", None)


def fitted(model):
    return Recommender(SCHEMA, model, training=TrainingSettings(epochs=1)).fit(LOG)


@pytest.mark.parametrize(
    "model", [Pooled, PooledSettings, PooledSettings(6), settings_of(Pooled, width=6)]
)
def test_a_recommender_takes_a_network_or_settings(model, tmp_path):
    recommender = fitted(model)
    assert isinstance(recommender.bundle_.network, Pooled)
    width = 6 if not isinstance(model, type) else {Pooled: 4, PooledSettings: 5}[model]
    assert (
        recommender.bundle_.settings.width == recommender.bundle_.network.out.in_features == width
    )
    recommender.save(tmp_path / "b")
    cls = model if isinstance(model, type) else type(model)
    loaded = Recommender.load(tmp_path / "b", model=cls)
    np.testing.assert_array_equal(loaded.bundle_.score(LOG), recommender.bundle_.score(LOG))
    assert loaded.bundle_.digest == recommender.bundle_.digest
    assert clone(recommender).get_params()["model"] == model


def test_settings_of_a_network_are_its_constructors_arguments():
    settings = settings_of(Pooled, scale=2)
    assert dataclasses.asdict(settings) == {"width": 4, "scale": 2.0}
    assert given(settings) == {"scale"}
    for again in (copy.deepcopy(settings), copy.copy(settings)):
        assert again == settings
        assert given(again) == {"scale"}
    assert Recommender(SCHEMA, settings).set_params(model__width=7).model == settings_of(
        Pooled, scale=2, width=7
    )
    with pytest.raises(ConfigError, match=r"Pooled has no setting 'widht': did you mean 'width'"):
        settings_of(Pooled, widht=3)
    with pytest.raises(ConfigError, match=r"Pooled.width must be of type int, found 'x'"):
        settings_of(Pooled, width="x")


def test_a_registered_model_has_its_name_in_recipes(tmp_path):
    assert register_model("pooled")(Pooled) is Pooled
    settings = model_from_dict({"name": "pooled", "width": 2})
    assert settings == settings_of(Pooled, width=2)
    assert model_to_dict(settings) == {"name": "pooled", "width": 2, "scale": 1.0}
    recipe = load_recipe("simulated/fm", ["model.name=pooled", "model.width=2"])
    assert recipe.model == settings
    assert dataclasses.replace(recipe, model=Pooled).model == settings_of(Pooled)
    fitted(settings).save(tmp_path / "b")
    assert Bundle.load(tmp_path / "b").settings == settings

    register_model("pooled")(Pooled)  # as a notebook's cell that is run again
    with pytest.raises(
        ConfigError, match=r"two models cannot have one name: 'pooled' is .*:Pooled already"
    ):
        register_model("pooled")(Column)
    with pytest.raises(ConfigError, match="'fm' is the name of a built-in model"):
        register_model("fm")(Pooled)
    register_model()(PooledSettings)
    assert model_name(PooledSettings()) == f"{__name__}:PooledSettings"
    assert model_name(FM()) == "fm"


def test_a_bundle_imports_nothing_that_it_names(module, tmp_path):
    import_model(f"{module}:Mean")
    fitted(model_from_dict({"name": f"{module}:Mean"})).save(tmp_path / "b")
    mean = sys.modules.pop(module).Mean
    registry._REGISTERED.clear()
    with pytest.raises(
        BundleError, match=rf"model '{module}:Mean', which is not built in.*--import {module}"
    ):
        Bundle.load(tmp_path / "b")
    with pytest.raises(ConfigError, match="code named by a file is not imported"):
        load_recipe("simulated/fm", [f"model.name={module}:Mean"])
    assert module not in sys.modules
    assert Bundle.load(tmp_path / "b", model=mean).settings.width == 3
    with pytest.raises(BundleError, match="must score as when it was saved"):
        Bundle.load(tmp_path / "b", model=PooledSettings)  # other weights
    fitted(FM(embedding_dim=2)).save(tmp_path / "fm")
    with pytest.raises(BundleError, match="the built-in model 'fm': load it without a model"):
        Bundle.load(tmp_path / "fm", model=mean)


def test_the_command_line_imports_what_it_names(module, tmp_path, capsys):
    recipe = [
        "describe",
        "simulated/fm",
        "--set",
        f"model.name={module}:Mean",
        "--set",
        "model.width=2",
    ]
    assert run(recipe) == 2
    assert f"fieldwise --import {module}:Mean" in capsys.readouterr().err
    assert run(["--import", f"{module}:Mean", *recipe]) == 0
    result = capsys.readouterr()
    assert result.out.startswith("simulated/fm")
    # the next command needs it too
    assert f"--import {module}:Mean train simulated/fm" in result.err
    (tmp_path / "broken_for_tests.py").write_text("1 / 0")
    for target, sentence in (
        ("no_such_module", "there is no 'no_such_module'"),
        ("broken_for_tests", "cannot be imported: ZeroDivisionError: division by zero"),
        (f"{module}:Maen", "has no 'Maen': did you mean 'Mean'?"),
        (f"{module}:torch", "is not a built-in model"),
    ):
        assert run(["--import", target, "describe"]) == 2
        error = capsys.readouterr().err
        assert sentence in error
        assert "Traceback" not in error


class NoForward(nn.Module):
    def __init__(self, layout):
        super().__init__()


class Loose(Pooled):
    def __init__(self, layout, **settings):
        super().__init__(layout)


class Named(Pooled):
    def __init__(self, layout, *, name: str = "x"):
        super().__init__(layout)


@dataclass(frozen=True)
class Callback:
    call: object = print

    def build(self, layout):
        return Pooled(layout)


def test_invalid_models_are_refused(subtests):
    with pytest.raises(
        ConfigError,
        match=r"Column.forward\(batch\) must return one logit per row, shape \[\d+\], f",
    ):
        fitted(Column)
    for model, sentence in [
        (NoForward, r"NoForward must have forward\(batch\)"),
        (Loose, "Loose must take the layout first, then named settings"),
        (Named, "Named has a setting 'name'"),
        (
            Pooled(Layout.of_sizes([3])),
            r"found a network that is already built: give Pooled, or fieldwise.settings_of",
        ),
        (Callback(), "Callback must hold only plain values"),
        (3, "int is not a built-in model"),
        (Schema, "Schema is not a built-in model"),
    ]:
        with subtests.test(model=model, sentence=sentence):
            with pytest.raises(ConfigError, match=sentence):
                as_settings(model)
            with pytest.raises(ConfigError, match=sentence):
                Recommender(SCHEMA, model).fit(LOG)


FOUND_EVERYWHERE = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
import fieldwise
assert "Mean" in fieldwise.__all__ and "Mean" in dir(fieldwise) and "torch" not in sys.modules
from fieldwise import Label, Mean, Numeric, Recommender, Schema, TrainingSettings, simulate
from fieldwise.models import MODELS
from fieldwise.models.serialise import model_name
from fieldwise.testing import check_model
from scripts.settings_page import model_defaults
settings = fieldwise.settings_of(Mean, width=2)
assert type(settings) is MODELS["mean"] and model_name(settings) == "mean"
check_model(Mean)
schema = Schema(fields=(Numeric("length"),), label=Label("liked"))
log = simulate(100, users=5, items=5)
model = Recommender(schema, "mean", training=TrainingSettings(epochs=1)).fit(log)
model.save("bundle")
assert fieldwise.Bundle.load("bundle").score(log[:3]).shape == (3,)
assert fieldwise.load_recipe("simulated/lr", ["model.name=mean", "model.width=2"]).model == settings
assert model_defaults(MODELS["mean"]) == ["-"] * 5
"""


@pytest.mark.slow
def test_a_file_in_the_package_and_two_lines_are_a_model(tmp_path):
    """Nothing else names a built-in model: a copy of the package with these has it everywhere."""
    root, copied = Path(__file__).parents[1], tmp_path / "fieldwise"
    shutil.copytree(
        root / "src" / "fieldwise", copied, ignore=shutil.ignore_patterns("__pycache__")
    )
    source = SOURCE.replace(
        "\n\nclass",
        '\nfrom fieldwise.models.registry import register_model\n\n@register_model("mean")\nclass',
    )
    (copied / "models" / "mean.py").write_text(source)
    for file, before, line in [
        (
            "models/__init__.py",
            "from fieldwise.models.nfm",
            "from fieldwise.models.mean import Mean as Mean\n",
        ),
        ("__init__.py", '    "NFM",\n', '    "Mean",\n'),
    ]:
        text = (copied / file).read_text("utf-8")
        assert text.count(before) == 1
        (copied / file).write_text(text.replace(before, line + before), "utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tmp_path}{os.pathsep}{root}",
        "FIELDWISE_NATIVE": "",
    }
    command = [sys.executable, "-c", FOUND_EVERYWHERE]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr


def test_runs_of_a_model_that_was_changed_are_other_runs(module, tmp_path):
    def key():
        import_model(f"{module}:Mean")
        return run_key(load_recipe("simulated/fm", [f"model.name={module}:Mean"]), Inputs({}, {}))

    first = key()
    assert key() == first
    (tmp_path / f"{module}.py").write_text(SOURCE.replace("mean(1)", "sum(1)"))
    assert key() != first


def test_several_labels_share_no_weights_by_mistake():
    schema = dataclasses.replace(
        SCHEMA, more_labels=(Label("true_probability", task="regression"),)
    )
    recommender = Recommender(schema, Pooled, training=TrainingSettings(epochs=1)).fit(LOG)
    assert recommender.bundle_.score(LOG).shape == (400, 2)
    one, two = recommender.bundle_.network.heads
    assert one.embedding is two.embedding
    assert not torch.equal(one.out.weight, two.out.weight)
