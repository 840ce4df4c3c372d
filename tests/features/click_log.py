"""A log of films, and the text of a recipe with features of its users and items as of their time."""

from collections.abc import Sequence

import polars as pl

from fieldwise import simulate

RECIPE = """
data = {{ path = "log.csv" }}
split = {{ kind = "time" }}
model = {{ name = "fm", embedding_dim = 4 }}
training = {{ epochs = 1 }}
features = [{features}]
[schema]
user = "user_id"
item = "item_id"
time = "timestamp"
label = {{ column = "liked" }}
fields = [{fields}]
"""
USER_RATE = '{ kind = "rate", key = "user_id", value = "liked", delay = "1h" }'


def log() -> pl.DataFrame:
    """3,000 rows in the order of their times, each of another one."""
    return simulate(3_000, users=60, items=30)


def recipe_text(fields: Sequence[str], features: Sequence[str]) -> str:
    """A recipe of `log.csv` with fields, each as `KIND NAME ROLE`, and features, each as an inline table."""
    tables = []
    for field in fields:
        kind, name, role = field.split()
        tables.append(f'{{ kind = "{kind}", name = "{name}", role = "{role}" }}')
    return RECIPE.format(fields=", ".join(tables), features=", ".join(features))
