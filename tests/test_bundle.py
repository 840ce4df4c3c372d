import dataclasses
import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from random_bundle import random_bundle
from safetensors.torch import load_file, save

import fieldwise
from fieldwise import (
    AFM,
    DCN,
    AutoInt,
    Bag,
    Bundle,
    BundleError,
    Categorical,
    ConfigError,
    DataError,
    DCNv2,
    Label,
    Numeric,
    Schema,
    Sequence,
)
from fieldwise.bundle import bundle as module
from fieldwise.bundle.about import About, RecipeFacts
from fieldwise.bundle.bundle import BUNDLE, bundle_digest, sample_rows
from fieldwise.models import MODELS, ModelSettings
from fieldwise.scoring.batches import SCORING_BATCH

SCHEMA = Schema(
    fields=(
        Categorical("user", role="user"),
        Sequence("history", role="user", max_length=3, shares="item"),
        Categorical("item", role="item", hash_buckets=7),
        Bag("genres", role="item", pooling="max"),
        Numeric("price", role="item"),
        Numeric("hour", encoding="quantile", bins=3),
    ),
    label=Label("click"),
    keys=("user",),
)


def log(rows: int = 40, seed: int = 0) -> pl.DataFrame:
    rng = np.random.default_rng(seed)
    return pl.DataFrame(
        {
            "user": [f"ü{k}" for k in rng.integers(0, 6, rows)],
            "history": [
                "|".join(f"i{k}" for k in rng.integers(0, 5, n)) for n in rng.integers(0, 5, rows)
            ],
            "item": rng.integers(0, 9, rows),
            "genres": [[f"g{k}" for k in rng.integers(0, 4, n)] for n in rng.integers(0, 4, rows)],
            "price": rng.normal(size=rows),
            "hour": rng.integers(0, 24, rows),
        }
    )


def make(settings: ModelSettings | None = None, seed: int = 0, schema: Schema = SCHEMA) -> Bundle:
    settings = settings or AFM(embedding_dim=4, attention_dim=3)
    about = About(
        recipe=RecipeFacts(name="x", settings={}), further={"n": 3, "shares": (0.5, 0.25)}
    )
    return random_bundle(
        settings, schema, log(), seed=seed + 100, std=0.5, samples=log().head(5), about=about
    )


def files_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir())


def rewrite(folder: Path, change) -> None:
    """Edit the manifest and give it the checksum that belongs to it, as a skilful tamperer would."""
    path = folder / "bundle.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    rest = {k: v for k, v in manifest.items() if k != "sha256"}
    manifest["sha256"] = hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()
    path.write_text(json.dumps(manifest))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    make().save(tmp_path / "b")
    return tmp_path / "b"


def test_a_bundle_comes_back_equal_to_the_bit(subtests, tmp_path):
    # the settings of all: test_recipe.py
    for name in ("afm", "autoint+", "ffm", "inttower", "dat", "finalmlp"):
        with subtests.test(name=name):
            bundle = make(MODELS[name]())
            bundle.save(str(tmp_path / "deep" / "b"), overwrite=True)
            loaded = Bundle.load(tmp_path / "deep" / "b")
            assert (loaded.schema, loaded.settings, loaded.encoder) == (
                bundle.schema,
                bundle.settings,
                bundle.encoder,
            )
            assert loaded.about.recipe == RecipeFacts(name="x", settings={})
            assert loaded.about.further == {"n": 3, "shares": [0.5, 0.25]}
            assert loaded.samples.equals(bundle.samples)
            assert not loaded.network.training
            before, after = bundle.network.state_dict(), loaded.network.state_dict()
            assert before.keys() == after.keys()
            assert all(torch.equal(before[k], after[k]) for k in before)
            fresh = log(100, seed=1)
            np.testing.assert_array_equal(loaded.score(fresh), bundle.score(fresh))


def test_the_folder_holds_what_the_module_says(saved):
    assert [(p.name.split(".")[0], p.suffix) for p in files_of(saved)] == [
        ("bundle", ".json"), ("encoder", ".json"), ("samples", ".arrow"), ("schema", ".toml"),
        ("weights", ".safetensors"),
    ]  # fmt: skip
    manifest = json.loads((saved / "bundle.json").read_text())
    assert manifest["versions"]["fieldwise"] == fieldwise.__version__
    assert manifest["model"]["name"] == "afm"
    for entry in manifest["files"].values():
        content = (saved / entry["name"]).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (
            entry["bytes"],
            entry["sha256"],
        )
    assert Schema.from_toml(next(saved.glob("schema.*"))) == SCHEMA
    assert "attention.W" in load_file(next(saved.glob("weights.*")))
    np.testing.assert_allclose(manifest["sample_scores"], make().score(log().head(5)))


def test_predictions_are_probabilities_or_numbers_within_the_range():
    bundle, frame = make(), log()
    np.testing.assert_allclose(
        bundle.predict(frame), 1 / (1 + np.exp(-bundle.score(frame))), rtol=1e-12
    )
    for label, expected in (
        (Label("click", task="regression"), lambda s: s),
        (Label("click", task="regression", range=(-0.1, 0.1)), lambda s: np.clip(s, -0.1, 0.1)),
    ):
        numbers = dataclasses.replace(bundle, schema=dataclasses.replace(SCHEMA, label=label))
        np.testing.assert_array_equal(numbers.predict(frame), expected(bundle.score(frame)))


def test_long_tables_are_scored_in_slices_with_the_same_bits(monkeypatch):
    bundle = make()
    rows = pl.concat([log()] * (6000 // log().height + 1)).head(6000)
    whole = bundle.score(rows)
    monkeypatch.setattr("fieldwise.bundle.bundle.SLICE_ROWS", 2 * SCORING_BATCH)
    assert bundle.score(rows).tolist() == whole.tolist()
    assert bundle.score(rows.clear()).shape == (0,)
    price = [*["1"] * 5000, "x", *["1"] * 999]
    text = rows.with_columns(price=pl.Series(price))
    with pytest.raises(DataError, match="row 5000"):
        bundle.score(text)


# Damage


def test_damaged_files_are_one_sentence(subtests, saved):
    for damage in ["flip", "truncate", "empty", "remove", "folder"]:
        for part in ["bundle", "schema", "encoder", "weights", "samples"]:
            with subtests.test(damage=damage, part=part):
                folder = shutil.copytree(saved, saved.with_name(f"{damage} {part}"))
                file = next(folder.glob(f"{part}.*"))
                content = bytearray(file.read_bytes())
                if damage == "flip":
                    content[len(content) // 2] ^= 0x01
                    file.write_bytes(bytes(content))
                elif damage == "truncate":
                    file.write_bytes(bytes(content[:-10]))
                elif damage == "empty":
                    file.write_bytes(b"")
                else:
                    file.unlink()
                    if damage == "folder":
                        file.mkdir()
                with pytest.raises(BundleError, match=r"damaged|is not a bundle") as caught:
                    Bundle.load(folder)
                assert "\n" not in str(caught.value)
                assert str(folder) in str(caught.value)


def test_a_manifest_edited_with_its_checksum_is_one_sentence(subtests, saved):
    changes = [
        *(lambda m, key=key: m.pop(key) for key in ("files", "model", "sample_scores", "about")),
        *(
            lambda m, wrong=wrong: m["model"].update(wrong)
            for wrong in ({"name": "gpt"}, {"colour": 5})
        ),
        *(
            lambda m, name=name: m["files"]["weights"].update(name=name)
            for name in ("../w.0.safetensors", "/etc/x")
        ),
        lambda m: m["files"].pop("weights"),
        lambda m: m.update(files=[1]),
        lambda m: m["files"]["weights"].pop("sha256"),
        lambda m: m["files"].update(weights=m["files"]["samples"]),
        lambda m: m["model"].update(attention_dim=5),
        lambda m: m.update(model=3),
        lambda m: m.update(sample_scores=["x"]),
        lambda m: m["sample_scores"].pop(),
        lambda m: m.update(format="1"),
    ]
    refused_in_one_sentence(subtests, saved, rewrite, changes)


def refused_in_one_sentence(subtests, saved, damage, changes) -> None:
    for number, change in enumerate(changes):
        with subtests.test(number=number):
            folder = shutil.copytree(saved, saved.with_name(f"copy {number}"))
            damage(folder, change)
            with pytest.raises(BundleError) as caught:
                Bundle.load(folder)
            assert "\n" not in str(caught.value)


HUGE = {
    DCN(embedding_dim=2, hidden=()): {"layers": 10**6},
    DCNv2(embedding_dim=2, hidden=()): {"layers": 10**6},
    AutoInt(embedding_dim=2): {"layers": 10**6},
    AutoInt(embedding_dim=2, attention_dim=4): {"heads": 10**6},
    AFM(embedding_dim=2): {"embedding_dim": 10**7},
}


@pytest.mark.parametrize(("settings", "change"), HUGE.items())
def test_settings_of_a_network_that_the_weights_are_not_of_are_refused_soon(
    tmp_path, settings, change
):
    """Before it is built: a million layers take minutes."""
    make(settings=settings).save(tmp_path / "a")
    rewrite(tmp_path / "a", lambda m: m["model"].update(change))
    with pytest.raises(BundleError):
        Bundle.load(tmp_path / "a")


def test_a_manifest_edited_without_its_checksum_is_damaged_and_a_newer_one_says_what_to_install(
    saved,
):
    path = saved / "bundle.json"
    path.write_text(path.read_text().replace('"n": 3', '"n": 4'))
    with pytest.raises(BundleError, match="does not match its checksum"):
        Bundle.load(saved)
    rewrite(saved, lambda m: m.update(format=99, files={"future": 1}))
    with pytest.raises(
        BundleError, match=r"has format 99, but .* reads up to format 3: install a newer"
    ):
        Bundle.load(saved)


def replace_part(part: str, old: Path, content: bytes) -> None:
    digest = hashlib.sha256(content).hexdigest()
    old.unlink()
    name = f"{part}.{digest[:12]}{old.suffix}"
    (old.parent / name).write_bytes(content)
    entry = {"name": name, "bytes": len(content), "sha256": digest}
    rewrite(old.parent, lambda m: m["files"].update({part: entry}))


def replace_weights(folder: Path, change) -> None:
    old = next(folder.glob("weights.*"))
    replace_part("weights", old, save(change(load_file(old))))


def test_weights_that_do_not_fit_are_refused(subtests, saved):
    changes = [
        lambda t: {k: v for k, v in t.items() if k != "p"},
        lambda t: {**t, "stranger": torch.zeros(1)},
        lambda t: {**t, "p": torch.zeros(99)},
    ]
    refused_in_one_sentence(subtests, saved, replace_weights, changes)

    def change(tensors, value):
        """A weight that no sample row reads: in the row of missing values."""
        name = max(
            (name for name in tensors if tensors[name].ndim == 2),
            key=lambda name: len(tensors[name]),
        )
        tensors[name][0, 0] = value
        return tensors

    for value in (float("nan"), -float("inf")):
        replace_weights(saved, lambda tensors, value=value: change(tensors, value))
        with pytest.raises(
            BundleError, match=r"is damaged: weights must be finite numbers, found 1 in "
        ):
            Bundle.load(saved)


def test_scores_may_differ_by_another_machines_rounding_alone(saved):
    """Though all checksums are right."""
    rewrite(saved, lambda m: m.update(sample_scores=[s + 1e-5 for s in m["sample_scores"]]))
    np.testing.assert_array_equal(Bundle.load(saved).score(log()), make().score(log()))
    replace_weights(saved, lambda t: {**t, "p": t["p"] * 1.01})
    with pytest.raises(BundleError, match=r"must score as when it was saved: .* for sample row \d"):
        Bundle.load(saved)


def test_a_folder_without_a_bundle_is_an_error(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name in ("nothing", "empty", "file"):
        with pytest.raises(BundleError, match="is not a bundle"):
            Bundle.load(tmp_path / name)


# Saving


def test_saving_over_a_bundle_leaves_no_old_file(saved):
    before = {p.name for p in files_of(saved)}
    make(seed=1).save(saved, overwrite=True)
    after = {p.name for p in files_of(saved)}
    assert len(after) == 5
    assert before - after == {name for name in before if name.startswith("weights")}


def test_a_folder_of_other_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.doc").write_text("years of work")
    (tmp_path / "weights.csv").write_text("a table")
    for act in (make().save, BUNDLE.check_folder):
        with pytest.raises(BundleError, match=r"a folder of its own: .* such as 'thesis.doc'"):
            act(tmp_path)
        with pytest.raises(BundleError, match="is a file; choose another name"):
            act(tmp_path / "thesis.doc")
    assert [p.name for p in files_of(tmp_path)] == ["thesis.doc", "weights.csv"]


def test_a_damaged_or_newer_bundle_may_be_written_over(saved):
    (saved / "bundle.json").write_text("{")
    (saved / "notes.txt").write_text("mine")
    BUNDLE.check_folder(saved)
    make().save(saved, overwrite=True)
    Bundle.load(saved)
    assert (saved / "notes.txt").read_text() == "mine"


def test_a_bundle_is_replaced_only_when_asked(saved):
    with pytest.raises(
        ConfigError, match="exists: give overwrite=True to replace it, or another folder"
    ):
        make(seed=1).save(saved)
    np.testing.assert_array_equal(Bundle.load(saved).score(log()), make().score(log()))
    make(seed=1).save(saved, overwrite=True)
    np.testing.assert_array_equal(Bundle.load(saved).score(log()), make(seed=1).score(log()))


def test_about_that_is_no_json_is_never_written(tmp_path):
    with pytest.raises(ValueError, match="JSON compliant"):
        dataclasses.replace(make(), about=About(run={"auc": float("nan")})).save(tmp_path / "b")
    assert not list(tmp_path.rglob("bundle.json"))


def test_a_bundle_made_from_one_that_another_process_replaced_is_refused(saved):
    read = bundle_digest(saved)
    make(seed=1).save(saved, replaces=read)
    with pytest.raises(
        BundleError,
        match=r"was replaced by another process since it was read.* make the change again",
    ):
        make(seed=2).save(saved, replaces=read)
    np.testing.assert_array_equal(Bundle.load(saved).score(log()), make(seed=1).score(log()))
    assert len(files_of(saved)) == 5


def test_samples_are_cut_to_their_number_or_none(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SAMPLE_ROWS", 3)
    for bundle, rows in (
        (make(), 3),
        (dataclasses.replace(make(schema=TWO), samples=log().clear()), 0),
    ):
        bundle.save(tmp_path / "b", overwrite=True)
        assert Bundle.load(tmp_path / "b").samples.height == rows


# Multi-task

STARS = Label("stars", task="regression", range=(-0.1, 0.1), weight=0.5)
TWO = dataclasses.replace(SCHEMA, more_labels=(STARS,))


def test_a_bundle_of_two_labels_comes_back(tmp_path):
    bundle = make(schema=TWO)
    bundle.save(tmp_path / "b")
    loaded = Bundle.load(tmp_path / "b")
    assert loaded.schema == TWO
    fresh = log(100, seed=1)
    score = loaded.score(fresh)
    assert score.shape == (100, 2)
    np.testing.assert_array_equal(score, bundle.score(fresh))
    expected = [1 / (1 + np.exp(-score[:, 0])), np.clip(score[:, 1], -0.1, 0.1)]
    np.testing.assert_allclose(loaded.predict(fresh), np.stack(expected, axis=1), rtol=1e-12)
    assert loaded.score(fresh.clear()).shape == loaded.predict(fresh.clear()).shape == (0, 2)
    tensors = load_file(next((tmp_path / "b").glob("weights.*")))
    assert [name for name in tensors if name.endswith("embedding.weight")] == [
        "embedding.weight", "heads.0.first_order.embedding.weight", "heads.1.first_order.embedding.weight",
    ]  # fmt: skip
    manifest = json.loads((tmp_path / "b" / "bundle.json").read_text())
    np.testing.assert_allclose(manifest["sample_scores"], bundle.score(log().head(5)))


def test_two_labels_sample_scores_that_do_not_fit_are_refused(tmp_path):
    for change, sentence in [
        (lambda m: m["sample_scores"][3].__setitem__(1, 99.0), r"for sample row 3, saved was 99"),
        (
            lambda m: m.update(sample_scores=[row[0] for row in m["sample_scores"]]),
            r"need 10 scores, saved were 5",
        ),
        (lambda m: m["sample_scores"][0].pop(), "cannot be read"),
    ]:
        make(schema=TWO).save(tmp_path / "b", overwrite=True)
        rewrite(tmp_path / "b", change)
        with pytest.raises(BundleError, match=sentence):
            Bundle.load(tmp_path / "b")


def test_sample_rows_are_spread_over_the_table(subtests):
    for rows, kept in [(0, 0), (1, 1), (5, 5), (32, 32), (33, 32), (1000, 32)]:
        with subtests.test(rows=rows, kept=kept):
            schema = Schema(fields=(Categorical("item"),), label=Label("click"), keys=("row",))
            frame = pl.DataFrame(
                {"row": range(rows), "item": ["x"] * rows, "other": [1] * rows},
                schema_overrides={"item": pl.String},
            )
            result = sample_rows(schema, frame)
            assert result.columns == ["row", "item"]
            numbers = result["row"].to_list()
            assert len(set(numbers)) == kept
            assert numbers == sorted(numbers)
            if rows:
                assert (numbers[0], numbers[-1]) == (0, rows - 1)
                assert max(np.diff(numbers), default=0) <= max(1, -(-rows // 31))


def test_a_bundle_from_before_there_were_several_labels_is_read(saved):
    old = next(saved.glob("schema.*"))
    lines = old.read_text().splitlines()
    newer = ("weight = ", 'name = "click"')
    content = "\n".join(line for line in lines if not line.startswith(newer)).encode()
    assert len(content.splitlines()) == len(lines) - 2
    replace_part("schema", old, content)
    np.testing.assert_array_equal(Bundle.load(saved).score(log()), make().score(log()))
