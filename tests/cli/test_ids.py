"""All commands use the same id columns: those given, else the schema's, else those that the naming rule finds."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from cli.test_bad_input import refused
from recipe_text import recipe_text

from fieldwise import Bundle, ConfigError, IdColumns
from fieldwise.cli import run
from fieldwise.scoring.recommend import recommend
from fieldwise.serving.loader import ServiceLoader
from fieldwise.serving.settings import Sources

TOWER = {
    "name": "inttower",
    "embedding_dim": 4,
    "hidden": [4],
    "user_heads": 1,
    "item_heads": 1,
    "head_dim": 2,
}
NAMED = "member_no", "film_no"  # the rule finds them, though gender, genre and user_id precede them
UNNAMED = "who", "shelf"  # the rule does not know these names: the schema must give them
OTHERS = "user_id", "title"  # columns that no field reads


@pytest.fixture(scope="module", params=["said", "by rule"])
def trained(request, tmp_path_factory) -> tuple[Path, Path, str, str]:
    """A bundle, its log and the columns that name users and items: given by the schema, or found by the rule."""
    user, item = UNNAMED if request.param == "said" else NAMED
    folder = tmp_path_factory.mktemp("ids")
    rng = np.random.default_rng(0)
    who, film = rng.integers(0, 12, 300), rng.integers(0, 15, 300)
    log = {
        "gender": who % 2,
        "user_id": rng.integers(100, 160, 300),
        user: who,
        "genre": film % 3,
        item: film,
    }
    more = {
        "title": [f"film {k}" for k in film],
        "day": range(300),
        "click": ((who + film) % 3 == 0).astype(int),
    }
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
    assert (
        run(["train", str(folder / "r.toml"), "--out", str(folder / "b"), "--quiet", "--json"]) == 0
    )
    return folder / "b", folder / "log.csv", user, item


def serving_columns(bundle: Path, log: Path, **options):
    """The columns of users and of items that a server takes of a log."""
    load = ServiceLoader(Sources(bundle=bundle, log=log, **options))
    assert load.log.column == load.users.column
    return load.users.column, load.item_id


def test_evaluation_and_report_use_the_same_id_columns(fieldwise, done, trained):
    bundle, _, user, item = trained
    code, out, err = fieldwise("evaluate", bundle, "--ranking", "--keep-seen")
    assert (code, f"ranking by {user} and {item}: " in out) == (0, True), err

    done("report", bundle, "--out", "r.html", "--quiet")
    page = Path("r.html").read_text()
    assert f"Users ({user}) by their training rows" in page
    assert f"Items ({item}) by their training rows" in page


def test_serving_indexing_and_recommending_use_the_same_id_columns(done, trained):
    bundle, log, user, item = trained
    table = pl.read_csv(log)
    table.unique(item).write_csv("items.csv")
    given = (
        OTHERS,
        {"user_id": OTHERS[0], "item_id": OTHERS[1]},
        IdColumns(user=OTHERS[0], item=OTHERS[1]),
    )
    for (users, items), options, catalogue in (((user, item), {}, None), given):
        assert serving_columns(bundle, log, **options) == (users, items)
        words = ("--id", items) if options else ()
        done("index", bundle, "--items", "items.csv", "--out", f"ix-{items}", "--json", *words)
        assert json.loads(Path(f"ix-{items}/index.json").read_text())["id_column"] == items
        who = table[users].unique()
        result = recommend(
            Bundle.load(bundle), table, catalogue, users=who, n=1, exclude_seen=False
        )
        assert result.columns == [users, items, "rank", "prediction", "source"]


def test_only_the_rule_takes_another_column(fieldwise, trained):
    bundle, log, user, item = trained
    table = pl.read_csv(log)
    # A tower reads the item's field: without its column no heads can be made, whatever names the
    # items.
    table.drop(item).with_columns(item_id=pl.col("title")).unique("title").write_csv("items.csv")
    code, _, err = fieldwise("index", bundle, "--items", "items.csv", "--out", "ix")
    assert code != 0
    if (user, item) == NAMED:
        assert "items are identified by the column 'item_id'" in err
        return
    assert f"the schema's item column is '{item}', but the table has no such column" in err
    assert "give --id, or correct item in the schema" in err
    with pytest.raises(
        ConfigError, match=f"the schema's user column is '{user}', but the table has no such"
    ):
        recommend(Bundle.load(bundle), table.rename({user: "user"}), users=[1])
    text = (log.parent / "r.toml").read_text().replace(f'user = "{user}"', f'user = "{user}m"')
    Path("r.toml").write_text(text)
    refused(
        fieldwise("train", "r.toml", "--out", "b", "--quiet"),
        f"the schema's user must be in the table: '{user}m' is not; did you mean '{user}'",
    )
