import dataclasses
import tomllib
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from fieldwise import (
    AFM,
    FM,
    ColumnSplit,
    ConfigError,
    FieldwiseError,
    NegativeSampling,
    RandomSplit,
    Recipe,
    SchemaError,
    TimeSplit,
    load_recipe,
    recipe_names,
)
from fieldwise.data.prepare.labels import read_labels
from fieldwise.data.read.public_sets import PUBLIC_SETS
from fieldwise.models import MODELS
from fieldwise.models.build import build_network
from fieldwise.models.serialise import model_from_dict, model_name, model_to_dict
from fieldwise.runs.data import prepare_recipe
from fieldwise.runs.recipe_files import RECIPES, protocol_names
from fieldwise.runs.search_space import search_space
from fieldwise.storage.scratch import NO_LIMIT

SMALL = """
seed = 3
[data]
path = "log.csv"
[schema]
label = { column = "click" }
fields = [{ kind = "categorical", name = "user" }, { kind = "categorical", name = "item" }]
[model]
name = "afm"
attention_dim = 4
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(SMALL)
    return path


# The package's recipes


def test_names_are_sorted_and_shared_parts_are_not_among_them():
    names = recipe_names()
    assert names == sorted(names)
    assert not any("/_" in name for name in names)
    wanted = {
        "movielens-1m/autoint", "movielens-1m/autoint-ids", "movielens-1m/inttower", "frappe/afm", "frappe/afm-squared",
        "adult/afm", "adult/afm-values", "criteo-sample/autoint", "avazu-sample/autoint", "simulated/afm",
    }  # fmt: skip
    assert wanted <= set(names)
    core = {MODELS[name] for name in ("lr", "fm", "afm", "autoint", "autoint+", "inttower")}
    for data in {name.split("/")[0] for name in names}:
        used = {load_recipe(name).model.__class__ for name in names if name.startswith(f"{data}/")}
        assert used >= core, data


def test_recipes_of_the_package_are_whole_and_round_trip(subtests):
    for name in recipe_names():
        with subtests.test(name=name):
            recipe = load_recipe(name)
            assert recipe.name == name
            assert recipe.description
            assert Recipe.from_dict(recipe.to_dict(), name) == recipe
            whole_set = recipe.data.name.removesuffix("-train")
            assert name.startswith(whole_set)
            assert recipe.data.name == "simulated" or recipe.data.name in PUBLIC_SETS
            columns = {f.column for f in recipe.schema.fields}
            assert not columns & {"true_probability", "split", "user_order"}
            assert recipe.schema.with_role("user")
            assert recipe.schema.with_role("item")


def test_squared_targets_of_frappe_and_the_ml1m_paper_rule():
    squared = load_recipe("frappe/afm-squared").schema.label
    assert (squared.task, squared.range) == ("regression", (-1.0, 1.0))
    rating = load_recipe("movielens-1m/autoint").schema.label
    assert (rating.positive_above, [str(v) for v in rating.drop_values]) == (3.0, ["3"])
    labels = load_recipe("movielens-1m/autoint-two-labels").schema.labels
    expected = [("rating", "rating", "binary"), ("stars", "rating", "regression")]
    assert [(label.name, label.column, label.task) for label in labels] == expected
    assert read_labels(
        pl.DataFrame({"rating": [1, 5, 3, 4]}), labels, budget=NO_LIMIT
    ).y.tolist() == [
        [0, 1],
        [1, 5],
        [1, 4],
    ]
    ids = {f.name for f in load_recipe("movielens-1m/autoint-ids").schema.fields}
    without = {f.name for f in load_recipe("movielens-1m/autoint").schema.fields}
    assert ids - without == {"user_id", "movie_id"}


def test_every_shared_part_is_used():
    used = {
        (f.parent, tomllib.loads(f.read_text("utf-8")).get("extends"))
        for f in RECIPES.glob("*/*.toml")
    }
    assert [
        part for part in RECIPES.glob("*/_*.toml") if (part.parent, part.stem) not in used
    ] == []


# Files of one's own


def test_a_file_of_ones_own(file):
    recipe = load_recipe(file)
    assert recipe == load_recipe(str(file))
    assert recipe.name == str(file)
    assert recipe.model == AFM(attention_dim=4)
    assert (recipe.split, recipe.negatives, recipe.seed) == (RandomSplit(), None, 3)
    assert recipe.data.path == str(file.parent / "log.csv")
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())  # a byte order mark is no fault
    assert load_recipe(file) == recipe


def test_extends_takes_a_file_with_or_without_its_suffix(file):
    child = file.parent / "child.toml"
    for name in (file.stem, file.name):
        child.write_text(f'extends = "{name}"')
        assert load_recipe(child).model == load_recipe(file).model
    for text, sentence in (
        ('extends = "none.toml"', r"child\.toml: none\.toml cannot be read"),
        ('extends = "child"', r"circular, found child\.toml -> child\.toml"),
    ):
        child.write_text(text)
        with pytest.raises(ConfigError, match=sentence):
            load_recipe(child)


def test_extends_lays_tables_over_tables(file):
    child = file.parent / "child.toml"
    child.write_text(
        'extends = "mine"\ndescription = "c"\n[model]\nattention_dim = 8\n[split]\nkind = "time"\n'
        '[schema]\nfields = [{ kind = "categorical", name = "item" }]\n[negatives]\nper_positive = 2\n'
        'user = "user"\nitem = "item"\n[training.l2]\n"attention.W" = 2.0\n'
    )
    recipe = load_recipe(child)
    assert recipe.model == AFM(attention_dim=8)
    assert recipe.split == TimeSplit()
    assert [f.name for f in recipe.schema.fields] == ["item"]  # lists are replaced whole
    assert recipe.schema.label.column == "click"
    assert isinstance(recipe.negatives, NegativeSampling)
    assert recipe.training.l2 == {"attention.W": 2.0}
    assert recipe.seed == 3
    assert Recipe.from_dict(recipe.to_dict(), recipe.name) == recipe
    # Another model or split starts from its own defaults.
    child.write_text('extends = "mine"\n[model]\nname = "fm"\n')
    assert load_recipe(child).model == FM()
    child.write_text('extends = "mine"\n[model]\nname = "afm"\nembedding_dim = 2\n')
    assert load_recipe(child).model == AFM(embedding_dim=2, attention_dim=4)


def test_a_wrong_file_is_one_sentence(subtests, file):
    for text, error, sentence in [
        ("description = '\xff'", ConfigError, "must be valid TOML in UTF-8"),
        (
            "a = " + "[" * 100_000,
            ConfigError,
            r"mine\.toml.*must be valid TOML in UTF-8: .*at most 50 levels",
        ),
        ('extends = "gone"\n', ConfigError, r"gone\.toml cannot be read: No such file"),
        (SMALL + "colour = 1\n", ConfigError, "model has no setting 'colour'"),
        (
            SMALL.replace("seed = 3", "sead = 3"),
            ConfigError,
            "has no setting 'sead': did you mean 'seed'",
        ),
        (
            SMALL.replace("seed = 3", "seed = 'x'"),
            ConfigError,
            r"mine\.toml: seed must be of type int, found 'x'",
        ),
        (
            SMALL.replace("[model]", "[modell]"),
            ConfigError,
            "no setting 'modell': did you mean 'model'",
        ),
        (
            SMALL.replace('"afm"', '"afmm"'),
            ConfigError,
            "toml: model.name must be a known model.* mean 'afm'",
        ),
        (
            SMALL.replace("attention_dim", "atention_dim"),
            ConfigError,
            "did you mean 'attention_dim'",
        ),
        (SMALL.replace("label =", "labl ="), SchemaError, "did you mean 'label'"),
        (SMALL.replace('path = "log.csv"', ""), ConfigError, "found neither: give one"),
        (
            SMALL.replace('path = "log.csv"', 'path = "l"\nname = "adult"'),
            ConfigError,
            "both 'adult' and .*: give one",
        ),
        (SMALL + "[training]\nl2 = 3\n", ConfigError, "training.l2 must be a table"),
        (SMALL + "[split]\nvalid = 0.1\n", ConfigError, "split needs kind = one of"),
        (SMALL + "[split]\nkind = 'rand'\n", ConfigError, "kind"),
    ]:
        with subtests.test(text=text, error=error, sentence=sentence):
            file.write_text(text, "latin-1")
            with pytest.raises(error, match=sentence) as caught:
                load_recipe(file)
            assert "\n" not in str(caught.value)


def test_a_recipe_that_is_not_there(subtests, tmp_path):
    (tmp_path / "schema.toml").write_text("fields = []")
    for source, sentence in [
        (tmp_path, "a recipe must be a TOML file .*, found the folder"),
        ("simulated/afn", "no recipe is named 'simulated/afn': did you mean 'simulated/afm'"),
        (tmp_path / "skema.toml", "skema.toml does not; check the path"),
        ("nowhere/none.toml", "a recipe file must exist: nowhere/none.toml does not"),
        ("simulated/_data", "no recipe is named"),
        ("", "no recipe is named ''"),
    ]:
        with (
            subtests.test(source=source, sentence=sentence),
            pytest.raises(ConfigError, match=sentence),
        ):
            load_recipe(source)


# --set

SEEDS = [("", -1), ("", 2**32), ("data.", -1), ("data_", -1)]


def test_an_override_changes_one_setting(subtests, file):
    for override, read, expected in [
        ("training.learning_rate = 1", lambda r: r.training.learning_rate, 1.0),
        ("training.monitor=logloss", lambda r: r.training.monitor, "logloss"),
        ('training.monitor="logloss"', lambda r: r.training.monitor, "logloss"),
        ("training.l2.attention.W=0.5", lambda r: r.training.l2, {"attention.W": 0.5}),
        ("training.l2.*=0.5", lambda r: r.training.l2, {"*": 0.5}),
        ('training.l2={"attention.W" = 2}', lambda r: r.training.l2, {"attention.W": 2.0}),
        ("model.attention_dim=8", lambda r: r.model.attention_dim, 8),
        ("model.name=fm", lambda r: r.model, FM()),
        ("seed=7", lambda r: r.seed, 7),
        ("description=a = b", lambda r: r.description, "a = b"),
        ("split.kind=time", lambda r: r.split.kind, "time"),
        ("split={kind = 'random', stratify = true}", lambda r: r.split, RandomSplit(stratify=True)),
        ("data.rows=5_000", lambda r: r.data.rows, 5000),
        ("data.path=my log.csv", lambda r: r.data.path, str(Path("my log.csv").resolve())),
        ('schema.keys=["user_id"]', lambda r: r.schema.keys, ("user_id",)),
        ("schema.label.column=other", lambda r: r.schema.label.column, "other"),
    ]:
        with subtests.test(override=override, read=read, expected=expected):
            changed, plain = load_recipe(file, [override]), load_recipe(file)
            assert read(changed) == expected
            assert changed != plain or read(plain) == expected


def test_later_overrides_win_and_add_up():
    overrides = ["training.epochs=3", "training.patience=1", "training.epochs=4", "model.name=fm"]
    recipe = load_recipe("simulated/afm", overrides)
    assert (recipe.training.epochs, recipe.training.patience) == (4, 1)
    assert recipe.model == FM()
    files = load_recipe(
        "simulated/afm", ["data.path=a.csv", "data.separator=;", "data.path=b.csv"]
    ).data
    assert (files.path, files.separator) == (str(Path("b.csv").resolve()), ";")
    assert files.name is None, "a file takes the place of a named set"
    assert load_recipe("simulated/afm", ["data.path=a.csv", "data.name=adult"]).data.path is None
    seeds = (
        load_recipe("simulated/lr", ["seed=3"]),
        load_recipe("simulated/lr", ["seed=3", "data_seed=1"]),
    )
    assert [(recipe.seed, recipe.rows_seed) for recipe in seeds] == [(3, 3), (3, 1)]


def test_a_wrong_override_is_one_sentence(subtests):
    for override, sentence in [
        *((f"{key}seed={value}", "seed must lie between 0 and 4294967295") for key, value in SEEDS),
        *(
            (f"{key}=inf", "must be finite, found")
            for key in ("training.clip_norm", "training.l2.p")
        ),
        ("model.embedding_std=nan", "must be finite, found"),
        ("training.epochs", "a setting must be given as key=value, found 'training.epochs'"),
        ("=3", "a setting must be given as key=value, found '=3'"),
        ("trainin.epochs=3", "no setting 'trainin.epochs': did you mean 'training.epochs'"),
        (
            "training.epoch=3",
            "no setting 'training.epoch': did you mean 'training.epochs'[?] known: adagrad_",
        ),
        (
            "training.embedding_dim=3",
            "no setting 'training.embedding_dim': did you mean 'model.embedding_dim'",
        ),
        ("epochs=3", "did you mean 'training.epochs'[?]"),
        ("learning_rat=3", "no setting 'learning_rat': did you mean 'training.learning_rate'"),
        (
            "modle.embeding_dim=3",
            "no setting 'modle.embeding_dim': did you mean 'model.embedding_dim'",
        ),
        ("split.knd=time", "no setting 'split.knd': did you mean 'split.kind'"),
        ("sed=3", "no setting 'sed': did you mean 'seed'"),
        ("zzz=3", "no setting 'zzz': known: benchmark, data"),
        ("training.epochs=many", "training.epochs must be of type int, found 'many'"),
        ("training.epochs=2.5", "training.epochs must be of type int"),
        ("training.epochs=0", "epochs must be at least 1, found 0"),
        ("training=3", "training must be a table of settings, found 3"),
        ("model=fm", "model must be a table of settings, found 'fm'"),
        ("model.attention_dims=8", "did you mean 'model.attention_dim'"),
        ("data.nam=x", "did you mean 'data.name'"),
        ("seed.x=1", "seed must be of type int"),
        ("schema.fields=[]", "at least one field"),
        ("training.epochs=" + "[" * 100_000, "training.epochs must be of type int"),
        ("training.epochs=" + "{a=" * 100_000, "training.epochs must be of type int"),
        ("a." * 100_000 + "a=1", "no setting 'a.a.a"),
    ]:
        with subtests.test(override=override[:99], sentence=sentence):
            with pytest.raises(FieldwiseError, match=sentence) as caught:
                load_recipe("simulated/afm", [override])
            assert "\n" not in str(caught.value)


# Models by name


def test_models_by_name():
    for name in MODELS:
        settings = model_from_dict({"name": name})
        assert type(settings) is MODELS[name]
        assert model_name(settings) == name
        assert model_from_dict(model_to_dict(settings)) == settings
    with pytest.raises(ConfigError, match="RandomSplit is not a built-in model"):
        model_name(RandomSplit())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"model\.name must be a known model, found None"):
        model_from_dict({})


def test_weights_are_seeded_and_the_global_random_state_is_untouched():
    import torch

    from fieldwise import Layout

    layout = Layout.of_sizes([3, 4])
    torch.manual_seed(1)
    before = torch.get_rng_state().clone()
    a, b, c = (build_network(AFM(), layout, seed).embedding.weight for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_schema_may_stand_in_a_file_of_its_own(file):
    whole = load_recipe(file)
    (file.parent / "columns.toml").write_text(whole.schema.to_toml(), "utf-8")
    parted = file.parent / "parted.toml"
    parted.write_text(
        'schema = "columns.toml"\ndata = { path = "log.csv" }\nmodel = { name = "lr" }\n', "utf-8"
    )
    assert load_recipe(parted).schema == whole.schema


def test_protocols_are_laid_over_a_recipe():
    assert protocol_names("movielens-1m") == ["leave-last-out", "random", "time"]
    recipe = load_recipe("movielens-1m/afm", protocol="time")
    assert (recipe.benchmark, recipe.protocol) == ("MovieLens-1M without ids", "time")
    assert recipe.split == ColumnSplit(
        column="split", train=("train",), valid=("val",), test=("test",)
    )
    assert (
        load_recipe("movielens-1m/afm", protocol="random").to_dict()
        == load_recipe("movielens-1m/afm").to_dict()
    )
    clean, paper = (
        load_recipe("movielens-1m-inttower/dssm", protocol=name) for name in ("clean", "paper")
    )
    assert clean.to_dict() == load_recipe("movielens-1m-inttower/dssm").to_dict()
    assert (clean.target_encoding.source, paper.target_encoding.source) == ("train", "own-part")
    assert (
        dataclasses.replace(paper, target_encoding=clean.target_encoding, protocol="clean") == clean
    )


def test_recipes_that_leak_warn_and_clean_ones_do_not(subtests):
    for name in recipe_names():
        with subtests.test(name=name):
            warnings = load_recipe(name).cautions()
            assert len(warnings) == (3 if name == "movielens-1m-inttower/inttower-authors" else 0)
    (warning,) = load_recipe("movielens-1m-inttower/dssm", protocol="paper").cautions()
    assert warning.startswith(
        "target_encoding.source = 'own-part' uses the labels of the scored rows: metrics are"
    )
    assert load_recipe("movielens-1m-inttower/inttower-authors", protocol="clean").cautions() == []


def test_warnings_count_the_rows_of_a_leak(tmp_path):
    """Users of odd numbers never like a film; of the films in order, the last fifth of the rows is held out."""
    rng = np.random.default_rng(0)
    users, films = rng.integers(0, 6, 400), np.arange(400) // 20
    log = pl.DataFrame(
        {"user": users, "film": films, "liked": rng.integers(0, 2, 400) * (users % 2 == 0)}
    )
    fields = [
        {"kind": "categorical", "name": "user", "role": "user"},
        {"kind": "categorical", "name": "film", "role": "item"},
        {"kind": "numeric", "name": "film_mean_label", "role": "item"},
    ]
    plain = {
        "data": {"path": "log.csv"},
        "schema": {"label": {"column": "liked"}, "fields": fields},
        "model": {"name": "lr"},
        "split": {
            "kind": "random",
            "test": 0.2,
            "drop_without_positive": "user",
            "valid_last_by": "film",
        },
        "target_encoding": {"columns": ["film"], "source": "own-side"},
    }
    recipe = Recipe.from_dict({**plain, "split": {**plain["split"], "valid": 0.16}}, "leaky")
    prepared = prepare_recipe(recipe, tmp_path, log)
    encoded, dropped, last = recipe.cautions(prepared)
    parts = (prepared.train.frame, prepared.valid.frame, prepared.test.frame)
    assert pl.concat(parts).get_column("user").unique().to_list() == [0, 2, 4]
    assert f"the scored rows, which are all {parts[2].height} test rows: metrics" in encoded
    assert (
        f"by their labels, which left out {int((users % 2).sum())}, also among the test rows"
        in dropped
    )
    trained = parts[0].get_column("film").implode()
    valid, test = (1 - part.get_column("film").is_in(trained).mean() for part in parts[1:])
    assert valid > 0.5
    assert 0.1 < test < 0.3
    assert (
        f"so that {valid:.1%} of the validation rows and {test:.1%} of the test rows have one that no"
        in last
    )


def test_a_recipe_that_only_extends_is_its_parent(subtests, tmp_path):
    child, grandchild = tmp_path / "child.toml", tmp_path / "grandchild.toml"
    grandchild.write_text('extends = "child"')
    for name in recipe_names():
        child.write_text(f'extends = "{name}"')
        folder = name.partition("/")[0]
        for protocol in (None, *protocol_names(folder)):
            with subtests.test(recipe=name, protocol=protocol):
                parent = load_recipe(name, protocol=protocol)
                for heir in (child, grandchild):
                    result = load_recipe(heir, protocol=protocol)
                    assert dataclasses.replace(result, name=name) == parent
                    assert search_space(result) == search_space(parent)


def test_a_protocol_that_a_parent_lacks_is_refused(tmp_path):
    (tmp_path / "child.toml").write_text('extends = "movielens-1m-inttower/inttower"')
    with pytest.raises(ConfigError, match="has no protocol 'time': known: clean, paper"):
        load_recipe(tmp_path / "child.toml", protocol="time")
    (tmp_path / "child.toml").write_text('extends = "frappe/fm"')
    with pytest.raises(
        ConfigError, match="has no protocol 'time': the package has none for frappe"
    ):
        load_recipe(tmp_path / "child.toml", protocol="time")


def test_an_override_selects_a_protocol(tmp_path):
    asked = load_recipe("movielens-1m/afm", protocol="leave-last-out")
    assert asked.split.order == "user_order"
    for override in (
        "protocol=leave-last-out",
        "protocol = leave-last-out",
        'protocol="leave-last-out"',
    ):
        assert load_recipe("movielens-1m/afm", [override]) == asked
    lain = load_recipe(
        "movielens-1m/afm", ["split.valid_rows=2", "protocol=time", "protocol=leave-last-out"]
    )
    assert lain == load_recipe(
        "movielens-1m/afm", ["split.valid_rows=2"], protocol="leave-last-out"
    )
    assert lain.split.valid_rows == 2
    (tmp_path / "own.toml").write_text(
        'protocol = "weekly"\nschema = { fields = [{ name = "a", kind = "numeric" }], label = { column = "y" } }\n'
        'data = { path = "log.csv" }\nmodel = { name = "lr" }\n'
    )
    assert load_recipe(tmp_path / "own.toml").protocol == "weekly", (
        "a recipe of one's own may name its split"
    )
    with pytest.raises(
        ConfigError,
        match=r"has no protocol 'time': your own data are split by the recipe's \[split\]",
    ):
        load_recipe(tmp_path / "own.toml", ["protocol=time"])
    for wrong in ("protocol=3", "protocol.name=time", "protocol="):
        with pytest.raises(ConfigError, match="recipe movielens-1m/afm has no protocol"):
            load_recipe("movielens-1m/afm", [wrong])
    with pytest.raises(
        ConfigError, match=r"'tmie': did you mean 'time'\? known: leave-last-out, random, time"
    ):
        load_recipe("movielens-1m/afm", protocol="tmie")
    with pytest.raises(
        ConfigError, match="has no protocol 'time': the package has none for frappe"
    ):
        load_recipe("frappe/afm", protocol="time")
    (tmp_path / "own.toml").write_text('extends = "movielens-1m/lr"\n')
    assert (
        load_recipe(tmp_path / "own.toml", protocol="leave-last-out").split.kind == "leave-last-out"
    )
