"""Every command that asks what names users and items gets one answer: the schema's, the rule's, or the one given."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cli.test_bad_input import refused
from recipe_text import recipe_text

from fieldwise.bundle.bundle import Bundle
from fieldwise.cli import run
from fieldwise.cli.options import Reading
from fieldwise.cli.serve import ServeOptions
from fieldwise.cli.serve_sources import Loader
from fieldwise.errors import ConfigError
from fieldwise.schema.ids import id_columns
from fieldwise.scoring.recommend import Catalogue, recommend

TOWER = {"name": "inttower", "embedding_dim": 4, "hidden": [4], "user_heads": 1, "item_heads": 1, "head_dim": 2}
NAMED = "member_no", "film_no"  # the rule finds them behind gender, genre and user_id, which stand before them
UNNAMED = "who", "shelf"  # no name tells it: the schema must
OTHERS = "user_id", "title"  # columns that no field reads


@pytest.fixture(scope="module", params=["said", "by rule"])
def trained(request, tmp_path_factory) -> tuple[Path, Path, str, str]:
    """A bundle, its log and the columns that name users and items: by the schema's word, or by the rule."""
    user, item = UNNAMED if request.param == "said" else NAMED
    folder = tmp_path_factory.mktemp("ids")
    rng = np.random.default_rng(0)
    who, film = rng.integers(0, 12, 300), rng.integers(0, 15, 300)
    log = {"gender": who % 2, "user_id": rng.integers(100, 160, 300), user: who, "genre": film % 3, item: film}
    more = {"title": [f"film {k}" for k in film], "day": range(300), "click": ((who + film) % 3 == 0).astype(int)}
    pl.DataFrame(log | more).write_csv(folder / "log.csv")
    said = f'user = "{user}"\nitem = "{item}"' if request.param == "said" else ""
    sides = (("gender", "user"), (user, "user"), ("genre", "item"), (item, "item"))
    text = recipe_text(
        folder / "log.csv",
        [("categorical", *side) for side in sides],
        model={**TOWER, "cir_weight": 0.0},
        training={"epochs": 1, "batch_size": 64},
        schema=f'{said}\ntime = "day"',
        split="time",
    )
    (folder / "r.toml").write_text(text)
    assert run(["train", str(folder / "r.toml"), "--out", str(folder / "b"), "--quiet", "--json"]) == 0
    return folder / "b", folder / "log.csv", user, item


def served(bundle: Path, log: Path, **options):
    """The columns of users and of items that a server takes of a log."""
    asked = ServeOptions(bundle=bundle, log=log, reading=Reading(), **options)
    load = Loader(asked)
    assert load.log.column == load.users.column
    return load.users.column, load.item_id


def test_evaluation_and_report_give_one_answer(fieldwise, done, trained):
    bundle, _, user, item = trained
    code, out, err = fieldwise("evaluate", bundle, "--ranking", "--keep-seen")
    assert (code, f"ranking by {user} and {item}: " in out) == (0, True), err

    done("report", bundle, "--out", "r.html", "--quiet")
    page = Path("r.html").read_text()
    assert f"Users ({user}) by their training rows" in page
    assert f"Items ({item}) by their training rows" in page


@pytest.mark.parametrize("given", [False, True], ids=["", "given"])
def test_what_serves_gives_one_answer(done, trained, given):
    bundle, log, user, item = trained
    other_user, other_item = OTHERS
    expected = OTHERS if given else (user, item)
    options = {"user_id": other_user, "item_id": other_item} if given else {}
    assert served(bundle, log, **options) == expected

    table = pl.read_csv(log)
    table.unique(item).write_csv("items.csv")
    asked = ("--id", other_item) if given else ()
    done("index", bundle, "--items", "items.csv", "--out", "ix", "--json", *asked)
    assert json.loads(Path("ix/index.json").read_text())["id_column"] == expected[1]

    catalogue = Catalogue(user=other_user, item=other_item) if given else None
    result = recommend(
        Bundle.load(bundle), table, catalogue, users=table[expected[0]].unique(), n=1, exclude_seen=False
    )
    assert result.columns == [expected[0], expected[1], "rank", "score", "source"]


def test_infer_proposes_what_the_rule_finds(fieldwise, trained):
    bundle, log, user, item = trained
    table = pl.read_csv(log).drop("user_id")
    table.write_csv("log.csv")
    out = fieldwise("init", "log.csv", "--out", "-")[1]
    assert f'user = "{user}"\nitem = "{item}"\n' in out, "also where no name tells it: by the rows"
    if (user, item) == NAMED:
        assert id_columns(table.columns, Bundle.load(bundle).schema) == {"user": user, "item": item}


def test_only_the_rule_takes_another_column(fieldwise, trained):
    bundle, log, user, item = trained
    table = pl.read_csv(log)
    # A tower reads the item's field: without its column no heads can be made, whatever names the items.
    table.drop(item).with_columns(item_id=pl.col("title")).unique("title").write_csv("items.csv")
    code, _, err = fieldwise("index", bundle, "--items", "items.csv", "--out", "ix")
    assert code != 0
    if (user, item) == NAMED:
        assert "items are identified by the column 'item_id'" in err
        return
    assert f"the schema's item column is '{item}', but the table has no such column" in err
    assert "give --id, or correct item in the schema" in err
    with pytest.raises(ConfigError, match=f"the schema's user column is '{user}', but the table has no such"):
        recommend(Bundle.load(bundle), table.rename({user: "user"}), users=[1])
    text = (log.parent / "r.toml").read_text().replace(f'user = "{user}"', f'user = "{user}m"')
    Path("r.toml").write_text(text)
    refused(
        fieldwise("train", "r.toml", "--out", "b", "--quiet"),
        f"the schema's user must be in the table: '{user}m' is not; did you mean '{user}'",
    )
