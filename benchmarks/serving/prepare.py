"""Data of both servers: 100,000 simulated items, 5,000 users, an IntTower, an AutoInt, an index."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import polars as pl

from fieldwise import Recommender, simulate
from fieldwise.runs.recipe import load_recipe
from fieldwise.serving import build_index

ITEMS, USERS, BODIES = 100_000, 5_000, 2_000
DECADE = "1970s"  # of a tenth of the items
USER_COLUMNS = ("user_id", "age_group", "gender", "city", "history")
ITEM_COLUMNS = ("item_id", "title", "genres", "release_decade", "length")


def prepare(folder: Path, *, items: int = ITEMS, rows: int = 1_500_000, trained: int = 150_000) -> None:
    """Write `inttower`, `autoint`, `index`, `users.parquet` and `bodies.json` into a folder, if they are missing.

    Training takes one epoch: the speed of requests does not depend on the weights.
    """
    if (folder / "bodies.json").exists():
        return
    folder.mkdir(parents=True, exist_ok=True)
    log = simulate(rows, users=USERS, items=items + items // 50, seed=0)
    catalogue = log.unique("item_id", keep="first", maintain_order=True).select(ITEM_COLUMNS).head(items)
    users = log.unique("user_id", keep="last", maintain_order=True).select(USER_COLUMNS)
    users.write_parquet(folder / "users.parquet")
    for name in ("inttower", "autoint"):
        recipe = load_recipe(f"simulated/{name}")
        settings = dataclasses.replace(recipe.training, epochs=1)
        recommender = Recommender(recipe.schema, recipe.model, training=settings).fit(log.head(trained))
        recommender.save(folder / name)
        if name == "inttower":
            build_index(recommender.bundle_, catalogue, folder / "index")
    rng = np.random.default_rng(0)
    names = users["user_id"].to_list()
    contexts = log.select("hour", "weekday", "device").sample(BODIES, seed=0).to_dicts()
    bodies = [
        {
            "user": names[rng.integers(len(names))],
            "context": context,
            "k": 20,
            "prerank": 200,
            "where": {"release_decade": [DECADE]},
        }
        for context in contexts
    ]
    (folder / "bodies.json").write_text(json.dumps(bodies), "utf-8")
    share = catalogue.filter(pl.col("release_decade") == DECADE).height
    print(f"{catalogue.height:,} items, {share:,} of the {DECADE}, which each request pre-ranks")
