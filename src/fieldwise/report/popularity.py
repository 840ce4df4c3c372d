"""The report's comparison with a popularity baseline: what both find for users among all items."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.prepared import Prepared
from fieldwise.display import Table
from fieldwise.errors import DataError, FieldwiseError
from fieldwise.evaluation import auc
from fieldwise.evaluation.words import of_100
from fieldwise.report.page import Block, Note, Section, count, percent
from fieldwise.report.runs import ReportedRun, Scored
from fieldwise.runs.ranking import RankingSettings, RankingTask, rank_items
from fieldwise.schema import Schema

__all__ = ["popularity_section"]

TITLE = "Compared with the popularity baseline"
K = 10
ITEMS = 5000  # maximum number of items ranked for a user, besides the liked ones
SCORED = 1_000_000  # approximate number of scored pairs of users and items
USERS = 50, 500
DRAWS = 1000


def popularity_section(run: ReportedRun, columns: Mapping[str, str | None], seed: int) -> Section:
    """Items found among the first ten by the model and by popularity, or the reason why this does not apply."""
    user, item = columns["user"], columns["item"]
    if run.recipe.schema.label.task != "binary":
        return _left_out("the label is a number, so no item counts as found")
    if user is None or item is None:
        return _left_out("the rows have no column of users, or none of items (`user` and `item` of the schema)")
    if run.bundle is None:
        return _left_out("a run stored by `compare` has no network: train a bundle")
    if run.recipe.target_encoding is not None:
        return _left_out("target encoding depends on rows, so an item has no values of its own")
    try:
        task = _task(run.prepared, run.recipe.schema, item, seed)
    except DataError:
        return _left_out("no test user has a positive row of an item that the user had not liked before")
    except FieldwiseError as e:
        return _left_out(str(e).removesuffix(", or omit --ranking"))  # the report has no such option
    try:
        ranked = rank_items(run.bundle, task)
    except FieldwiseError as e:
        return _left_out(str(e))
    hits = [np.bincount(ranked.user, place <= K) for place in (ranked.place, ranked.popular)]
    most = np.minimum(np.bincount(ranked.user), K)
    shown = _shown(run.test[run.recipe.schema.label.name], run.prepared.test.frame.get_column(item), task)
    return Section(title=TITLE, blocks=[*_blocks(hits[0] / most, hits[1] / most, task, seed), shown])


def _task(prepared: Prepared, schema: Schema, item: str, seed: int) -> RankingTask:
    """The ranking of `evaluate --ranking`, with fewer users and items where there are many."""
    parts = (prepared.train, prepared.valid, prepared.test)
    items = pl.concat([as_text(part.frame.get_column(item)) for part in parts]).n_unique()
    users = max(USERS[0], min(USERS[1], SCORED // min(items, ITEMS)))
    return RankingTask(prepared, schema, RankingSettings(candidates=ITEMS, users=users, seed=seed))


def _shown(rows: Scored, items: pl.Series, task: RankingTask) -> Note:
    """How well both rank the test rows themselves."""
    likes = dict(zip(as_text(task.items.get_column(items.name)), task.likes.tolist(), strict=True))
    model, guess = auc(rows.y, rows.score), auc(rows.y, [likes.get(one, 0) for one in as_text(items)])
    return Note(
        text="Of a positive and a negative test row sampled at random, the model scores the "
        f"positive one higher {of_100(model)} times of 100, and popularity {of_100(guess)} times."
    )


def _blocks(of_model: np.ndarray, of_popular: np.ndarray, task: RankingTask, seed: int) -> list[Block]:
    """Both, from the share of each user's positive test items (K at most) among the first K, [U]."""
    model, popular = float(of_model.mean()), float(of_popular.mean())
    gain = of_model - of_popular
    drawn = np.random.default_rng(seed).choice(gain, (DRAWS, len(gain))).mean(1)
    low, high = (float(one) for one in np.quantile(drawn, (0.025, 0.975)))
    more = f"{of_100(abs(model - popular))} of 100 {'more' if model > popular else 'fewer'} found"
    certain = low > 0 or high < 0
    words = f"{TITLE}: {more if certain else f'no significant difference ({more})'}"
    sentence = (
        f"{words}. Of 100 items that users liked, {of_100(model)} are among the model's first {K} "
        f"for them, and {of_100(popular)} among the {K} items with the most positive training rows."
    )
    blocks: list[Block] = [Note(text=sentence, warns=certain and model < popular)]
    if model <= popular or not certain:
        text = (
            "A model learns from its log which of the items that were shown or used are positive. It does not learn "
            "which items are shown or used at all, which popularity reflects: a recipe's `negatives` add rows of other "
            "items."
        )
        blocks.append(Note(text=text))
    table = Table(
        columns=[f"among the first {K}", "model", "popularity", "difference", "95 % interval"],
        rows=[
            ["found of each user's", *_compared(of_model, of_popular), f"{_points(low)} to {_points(high)}"],
            ["users with one found", *_compared(of_model > 0, of_popular > 0), ""],
        ],
        note=f"{_about(task, len(gain))}. At most {K} of a user's items can be found, and at most as many count. "
        f"Interval: bootstrap over users, {DRAWS:,} replicates.",
    )
    return [*blocks, table]


def _about(task: RankingTask, users: int) -> str:
    several = f"{count(users)} users" + (f" sampled of {count(task.all_users)}" if task.all_users > users else "")
    items = task.items.height
    which = f"{ITEMS:,} of {items:,} items sampled for each, with those they liked"
    which = which if items > ITEMS else f"{items:,} items, which are all"
    return (
        f"{several} with positive test rows of items that they had not liked before; {which}, without those that the "
        "user liked in training and validation rows (`fieldwise evaluate --ranking`)"
    )


def _compared(model: np.ndarray, popular: np.ndarray) -> list[str]:
    """The means of both, and their difference."""
    of_model, of_popular = float(model.mean()), float(popular.mean())
    return [percent(of_model), percent(of_popular), _points(of_model - of_popular)]


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _left_out(why: str) -> Section:
    return Section(title=TITLE, blocks=[Note(text=f"Omitted: {why}.")])
