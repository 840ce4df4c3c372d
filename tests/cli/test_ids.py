"""Every command that asks what names users and items gets one answer: the schema's, the rule's, or the one given."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from recipe_text import recipe_text

from fieldwise.bundle.bundle import Bundle
from fieldwise.cli import run
from fieldwise.cli.listening import Listening
from fieldwise.cli.serve_options import LogReading, ServeOptions
from fieldwise.cli.serve_sources import read_tables
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
    assert run(["train", str(folder / "r.toml"), "--out", str(folder / "b"), "--quiet", "--json", "--no-cache"]) == 0
    return folder / "b", folder / "log.csv", user, item


def served(bundle: Path, log: Path, **options):
    """The columns of users and of items that a server takes of a log."""
    asked = ServeOptions(bundle=bundle, log=log, reading=LogReading(), listening=Listening(), **options)
    tables = read_tables(asked, [Bundle.load(bundle).schema])
    assert tables.log.column == tables.users.column
    return tables.users.column, tables.item_id


@pytest.mark.parametrize("given", [False, True], ids=["", "given"])
def test_all_commands_give_one_answer(fieldwise, trained, given):
    bundle, log, user, item = trained
    other_user, other_item = OTHERS
    by = {"--user": other_user, "--item": other_item} if given else {}
    words = [word for pair in by.items() for word in pair]
    expected = OTHERS if given else (user, item)

    code, out, err = fieldwise("evaluate", bundle, "--ranking", "--keep-seen", "--no-cache", *words)
    assert (code, f"ranking by {expected[0]} and {expected[1]}: " in out) == (0, True), err

    assert fieldwise("report", bundle, "--out", "r.html", "--quiet", "--no-cache", *words)[0] == 0
    page = Path("r.html").read_text()
    assert f"Users ({expected[0]}) by their training rows" in page
    assert f"Items ({expected[1]}) by their training rows" in page

    options = {"user_id": other_user, "item_id": other_item} if given else {}
    assert served(bundle, log, **options) == expected

    table = pl.read_csv(log)
    table.unique(item).write_csv("items.csv")
    asked = ("--id", other_item) if given else ()
    assert fieldwise("index", bundle, "--items", "items.csv", "--out", "ix", "--json", *asked)[0] == 0
    assert json.loads(Path("ix/index.json").read_text())["id_column"] == expected[1]

    catalogue = Catalogue(user=other_user, item=other_item) if given else None
    found = recommend(Bundle.load(bundle), table, catalogue, users=table[expected[0]].unique(), n=1, exclude_seen=False)
    assert found.columns == [expected[0], expected[1], "rank", "score", "source"]


def test_infer_proposes_what_the_rule_finds(fieldwise, trained):
    bundle, log, user, item = trained
    table = pl.read_csv(log).drop("user_id")
    table.write_csv("log.csv")
    out = fieldwise("data", "infer", "log.csv")[1]
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
    code, _, err = fieldwise("train", "r.toml", "--out", "b", "--quiet")
    assert code != 0
    assert f"the schema's user must be in the table: '{user}m' is not; did you mean '{user}'" in err
