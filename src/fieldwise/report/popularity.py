"""The section that compares a model's ranking of items with that by popularity."""

from collections.abc import Mapping

import numpy as np
import polars as pl

from fieldwise.data.encode.columns import as_text
from fieldwise.display import Table
from fieldwise.errors import DataError, FieldwiseError
from fieldwise.evaluation import auc
from fieldwise.evaluation.bootstrap import percentile_interval
from fieldwise.evaluation.lists import LIST_MEASURES, list_measures, same_list_sentence
from fieldwise.evaluation.words import of_100
from fieldwise.report.page import Block, Caution, Section, count, percent
from fieldwise.report.reported_run import ReportedRun
from fieldwise.runs.ranking import (
    RankedLists,
    RankingSettings,
    RankingTask,
    rank_items,
    ranking_obstacle,
)
from fieldwise.schema import Label

TITLE = "Compared with the popularity baseline"
K = 10
REPLICATES = 1000
MAX_RANKED_ITEMS = 5000
"""Of a user, besides the liked ones."""
MAX_SCORED_PAIRS = 1_000_000
"""Approximate number of scored pairs of users and items."""
LISTS_NOTE = (
    "Over the same users: the share of items that some list shows, the share of shown items that the tenth of items "
    "shown most often has, the mean share in common of two users' lists, and the mean of -log2 of a shown item's "
    "share of positive training rows."
)
USERS_RANGE = 50, 500
"""The least and the greatest number of users, whatever their items."""


def popularity_section(run: ReportedRun, columns: Mapping[str, str | None], seed: int) -> Section:
    """Items found among the first ten by the model and by popularity, or the reason why this does not apply."""
    label = run.recipe.schema.label
    user = columns["user"]
    item = columns["item"]
    if label.task != "binary":
        return _omitted("the label is a number, so no item counts as found")
    if user is None or item is None:
        return _omitted(
            "the rows have no column of users, or none of items (`user` and `item` of the schema)"
        )
    if run.bundle is None:
        return _omitted("a run stored by `compare` has no network: train a bundle")
    if run.recipe.target_encoding is not None:
        return _omitted("target encoding depends on rows, so an item has no values of its own")
    obstacle = ranking_obstacle(run.recipe.schema)
    if obstacle:
        return _omitted(obstacle)

    settings = _ranking_settings(run, item, seed)
    try:
        task = RankingTask(run.prepared, run.recipe.schema, settings)
    except DataError:
        return _omitted(
            "no test user has a positive row of an item that the user had not liked before"
        )
    except FieldwiseError as e:
        return _omitted(str(e))
    try:
        ranked = rank_items(run.bundle, task)
    except FieldwiseError as e:
        return _omitted(str(e))

    findable = np.minimum(np.bincount(ranked.user), K)
    of_model = np.bincount(ranked.user, ranked.rank <= K) / findable
    of_popular = np.bincount(ranked.user, ranked.popular <= K) / findable
    blocks = _blocks(of_model, of_popular, task, seed)
    blocks.append(_auc_sentence(run, task, item, label))
    if ranked.lists is not None:
        blocks += _lists_blocks(ranked.lists)
    return Section(TITLE, blocks)


def _lists_blocks(lists: RankedLists) -> list[Block]:
    """How the lists of users differ, in a table, and a caution if most users get the same one."""
    of_model = lists.exposure(K)
    of_popular = lists.exposure(K, popular=True)
    assert of_model is not None, "more than K items of each list are kept"
    assert of_popular is not None, "likewise"
    model = list_measures([of_model])
    popular = list_measures([of_popular])
    rows = []
    for name, measure in LIST_MEASURES.items():
        rows.append([measure.title, measure.text(model[name]), measure.text(popular[name])])
    table = Table([f"lists of the first {K}", "model", "popularity"], rows, note=LISTS_NOTE)
    sentence = same_list_sentence([of_model])
    if sentence is None:
        return [table]
    return [Caution(f"CHECK: {sentence}."), table]


def _omitted(why: str) -> Section:
    return Section(TITLE, [f"Omitted: {why}."])


def _ranking_settings(run: ReportedRun, item: str, seed: int) -> RankingSettings:
    """Those of `evaluate --ranking`, with fewer users and items where there are many."""
    prepared = run.prepared
    parts = (prepared.train, prepared.valid, prepared.test)
    ids = pl.concat([as_text(part.frame.get_column(item)) for part in parts])
    items_per_user = min(ids.n_unique(), MAX_RANKED_ITEMS)
    fewest_users, most_users = USERS_RANGE
    users = max(fewest_users, min(most_users, MAX_SCORED_PAIRS // items_per_user))
    return RankingSettings(candidates=MAX_RANKED_ITEMS, users=users, seed=seed)


def _auc_sentence(run: ReportedRun, task: RankingTask, item: str, label: Label) -> str:
    """How both order the test rows, whose items were shown."""
    rows = run.test[label.name]
    likes = dict(zip(as_text(task.items.get_column(item)), task.likes.tolist(), strict=True))
    popularity = [likes.get(name, 0) for name in as_text(run.prepared.test.frame.get_column(item))]
    of_model = auc(rows.y, rows.score, weight=rows.weight)
    of_popular = auc(rows.y, popularity, weight=rows.weight)
    return (
        "Of a positive and a negative test row sampled at random, the model scores the "
        f"positive one higher {of_100(of_model)} times of 100, and popularity {of_100(of_popular)} times."
    )


def _blocks(
    of_model: np.ndarray, of_popular: np.ndarray, task: RankingTask, seed: int
) -> list[Block]:
    """Sentences and a table on the share of each user's positive test items (K at most) among the first K, [U]."""
    low, high = percentile_interval(of_model - of_popular, replicates=REPLICATES, seed=seed)
    model = float(of_model.mean())
    popular = float(of_popular.mean())
    is_better = model > popular
    is_significant = low > 0 or high < 0

    direction = "more" if is_better else "fewer"
    difference = f"{of_100(abs(model - popular))} of 100 {direction} found"
    if not is_significant:
        difference = f"no significant difference ({difference})"
    sentence = (
        f"{TITLE}: {difference}. Of 100 items that users liked, {of_100(model)} are among the model's first {K} "
        f"for them, and {of_100(popular)} among the {K} items with the most positive training rows."
    )
    if is_significant and model < popular:
        sentence = Caution(sentence)
    blocks: list[Block] = [sentence]
    if not is_better or not is_significant:
        blocks.append(
            "A model learns from its log which of the items that were shown or used are positive. It does not learn "
            "which items are shown or used at all, which popularity reflects: a recipe's `negatives` add rows of other "
            "items."
        )

    rows = [
        _row("found of each user's", of_model, of_popular),
        _row("users with one found", of_model > 0, of_popular > 0),
    ]
    rows[0].append(f"{100 * low:+.1f} to {100 * high:+.1f}")
    rows[1].append("")
    columns = [f"among the first {K}", "model", "popularity", "difference", "95 % interval"]
    blocks.append(Table(columns, rows, note=_note(len(of_model), task)))
    return blocks


def _row(title: str, of_model: np.ndarray, of_popular: np.ndarray) -> list[str]:
    """The title, both means in per cent, and their difference."""
    model = float(of_model.mean())
    popular = float(of_popular.mean())
    return [title, percent(model), percent(popular), f"{100 * (model - popular):+.1f}"]


def _note(users: int, task: RankingTask) -> str:
    """Which users and items were ranked."""
    which_users = f"{count(users)} users"
    if task.all_users > users:
        which_users += f" sampled of {count(task.all_users)}"
    items = task.items.height
    which_items = f"{items:,} items, which are all"
    if items > MAX_RANKED_ITEMS:
        which_items = (
            f"{MAX_RANKED_ITEMS:,} of {items:,} items sampled for each, with those they liked"
        )
    return (
        f"{which_users} with positive test rows of items that they had not liked before; {which_items}, without those "
        f"that the user liked in training and validation rows (`fieldwise evaluate --ranking`). At most {K} of a "
        f"user's items can be found, and at most as many count. Interval: bootstrap over users, {REPLICATES:,} "
        "replicates."
    )
