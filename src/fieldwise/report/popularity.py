"""The report's comparison with a popularity baseline: what both find for users among all items."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise.bundle.bundle import Bundle
from fieldwise.data.encode.columns import as_text
from fieldwise.data.prepare.prepared import Part, Prepared
from fieldwise.errors import FieldwiseError
from fieldwise.evaluation import auc
from fieldwise.evaluation.words import of_100
from fieldwise.report.blocks import Block, Note, Section, Table, count, percent
from fieldwise.report.runs import ReportedRun, Scored
from fieldwise.serving.queries import Query
from fieldwise.serving.whole import WholeRanking

__all__ = ["Against", "against_popularity", "popularity_section"]

TITLE = "Compared with the popularity baseline"
K = 10
ITEMS = 5000  # maximum number of items ranked for a user
SCORED = 1_000_000  # approximate number of scored pairs of users and items
USERS = 50, 500
DRAWS = 1000


@dataclass(frozen=True, kw_only=True, eq=False)
class Against:
    """The share of each user's positive test items (k at most) among the first k, for model and baseline, [U].

    Args:
        model: shares of the model.
        popular: shares of the most popular items.
        items: number of items ranked.
        users: number of users with positive test rows of items that are new to them.
        drawn: whether items were sampled.
    """

    model: np.ndarray
    popular: np.ndarray
    items: int
    users: int
    drawn: bool


def popularity_section(run: ReportedRun, columns: Mapping[str, str | None], seed: int) -> Section:
    """Items found among the first ten by the model and by popularity, or the reason why this does not apply."""
    user, item = columns["user"], columns["item"]
    if run.recipe.schema.label.task != "binary":
        return _left_out("the label is a number, so no item counts as found")
    if user is None or item is None:
        return _left_out("the rows have no column of users, or none of items (`--user`, `--item`)")
    if run.bundle is None:
        return _left_out("a run stored by `compare` has no network: train a bundle")
    if run.recipe.target_encoding is not None:
        return _left_out("target encoding depends on rows, so an item has no values of its own")
    try:
        found = against_popularity(run.bundle, run.prepared, user, item, seed=seed)
    except FieldwiseError as e:
        return _left_out(str(e))
    if found is None:
        return _left_out("no test user has a positive row of an item that is new to that user")
    shown = _shown(run.test[run.recipe.schema.label.name], run.prepared, item)
    return Section(title=TITLE, blocks=[*_blocks(found, seed), shown])


def _shown(rows: Scored, prepared: Prepared, item: str) -> Note:
    """How well both rank the test rows themselves."""
    counts = _counts(prepared.train, item)
    popular = [float(counts.get(one, 0)) for one in as_text(prepared.test.frame.get_column(item))]
    model, guess = auc(rows.y, rows.score), auc(rows.y, np.array(popular))
    return Note(
        text="Of a positive and a negative test row sampled at random, the model scores the "
        f"positive one higher {of_100(model)} times of 100, and popularity {of_100(guess)} times."
    )


def against_popularity(
    bundle: Bundle, prepared: Prepared, user: str, item: str, *, k: int = K, seed: int = 0
) -> Against | None:
    """Rank items for test users by the bundle and by popularity (number of positive training rows).

    A user's targets are the items of positive test rows that are not in the user's training or validation rows; items
    in those are not ranked. The context is that of the first such row. An item has the values of its last training
    row, or of another row if it has none.

    Args:
        bundle: with fields of items and of users or contexts.
        prepared: the rows.
        user: the column of users.
        item: the column of items.
        k: the cutoff.
        seed: seed for sampling users, and items if there are more than 5,000.

    Returns:
        None if no user has a target.

    Errors:
        ConfigError: a schema without fields of items or of contexts.
    """
    rng = np.random.default_rng(seed)
    targets = _targets(prepared, user, item)
    if not targets.height:
        return None
    names = [f.column for f in bundle.schema.with_role("item")]
    parts = [part.frame.select(list(dict.fromkeys([item, *names]))) for part in _parts(prepared)]
    items = pl.concat([part.with_columns(as_text(part[item]).alias("_item")) for part in parts[::-1]])
    items = items.drop_nulls("_item").unique("_item", keep="last").sort("_item")
    most = min(items.height, ITEMS)
    people = targets.sample(min(targets.height, max(USERS[0], min(USERS[1], SCORED // most))), seed=seed)
    if items.height > ITEMS:
        wanted = people["targets"].explode().unique()
        drawn = items["_item"].gather(np.sort(rng.choice(items.height, ITEMS, replace=False)))
        ranked = items.filter(pl.col("_item").is_in(pl.concat([wanted, drawn]).unique().implode()))
    else:
        ranked = items
    ids = ranked["_item"].to_list()
    order = _popular(prepared.train, item, ids)
    whole = WholeRanking(bundle, ranked.drop("_item"), item)
    model: list[float] = []
    popular: list[float] = []
    for own, known, row in people.select("targets", "known", "row").iter_rows():
        known = set(known or ())
        context = prepared.test.frame.row(row, named=True)
        best = whole.recommend(Query(context=context, k=k, prerank=max(k, 200), exclude=known)).rows
        first = [one for one in order if one not in known][:k]
        for found, top in ((model, [ids[place] for place in best]), (popular, first)):
            found.append(len(set(own).intersection(top)) / min(k, len(own)))
    return Against(
        model=np.array(model),
        popular=np.array(popular),
        items=len(ids),
        users=targets.height,
        drawn=items.height > ITEMS,
    )


def _parts(prepared: Prepared) -> list[Part]:
    return [prepared.train, prepared.valid, prepared.test]


def _pairs(part: Part, user: str, item: str) -> pl.DataFrame:
    y = np.asarray(part.main, dtype=np.float64)
    columns = {"user": as_text(part.frame.get_column(user)), "item": as_text(part.frame.get_column(item)), "y": y}
    return pl.DataFrame(columns).with_row_index("row").drop_nulls()


def _targets(prepared: Prepared, user: str, item: str) -> pl.DataFrame:
    """For each user, in the order of ids: `targets`, `known` items and the first target's `row` of the test rows."""
    train, valid, test = (_pairs(part, user, item) for part in _parts(prepared))
    before = pl.concat([train, valid]).select("user", "item").unique()
    new = test.filter(pl.col("y") == 1).join(before, on=["user", "item"], how="anti", maintain_order="left")
    found = new.group_by("user").agg(pl.col("item").unique(maintain_order=True).alias("targets"), pl.col("row").min())
    known = before.group_by("user").agg(pl.col("item").alias("known"))
    return found.join(known, on="user", how="left").sort("user")


def _popular(train: Part, item: str, ids: list[str]) -> list[str]:
    """Items by decreasing number of positive training rows, then in the order of ids."""
    counts = _counts(train, item)
    return sorted(ids, key=lambda one: -counts.get(one, 0))


def _counts(train: Part, item: str) -> dict[str, int]:
    """Positive training rows by item."""
    y = np.asarray(train.main, dtype=np.float64)
    return dict(as_text(train.frame.get_column(item)).filter(pl.Series(y == 1)).value_counts(name="n").rows())


def _blocks(found: Against, seed: int) -> list[Block]:
    model, popular = float(found.model.mean()), float(found.popular.mean())
    gain = found.model - found.popular
    drawn = np.random.default_rng(seed).choice(gain, (DRAWS, len(gain))).mean(1)
    low, high = (float(one) for one in np.quantile(drawn, (0.025, 0.975)))
    more = f"{of_100(abs(model - popular))} of 100 {'more' if model > popular else 'fewer'} found"
    certain = low > 0 or high < 0
    words = (
        f"Compared with the popularity baseline: {more}"
        if certain
        else (f"Compared with the popularity baseline: no significant difference ({more})")
    )
    which = "items sampled at random, with those they liked" if found.drawn else "items, which are all"
    several = f"{count(len(gain))} users" + (f" sampled of {count(found.users)}" if found.users > len(gain) else "")
    sentence = (
        f"{words}. Of 100 items that users liked, {of_100(model)} are among the model's first {K} "
        f"for them, and {of_100(popular)} among the {K} items with the most positive training rows."
    )
    blocks: list[Block] = [Note(text=sentence, warns=certain and model < popular)]
    if model <= popular or not certain:
        text = (
            "A model learns from its log which of the items that were shown or used are positive. It does not learn "
            "which "
            "items are shown or used at all, which popularity reflects: a recipe's `negatives` add rows of other items."
        )
        blocks.append(Note(text=text))
    table = Table(
        columns=[f"among the first {K}", "model", "popularity", "difference", "95 % interval"],
        rows=[
            ["found of each user's", percent(model), percent(popular), _points(model - popular), _ends(low, high)],
            ["users with one found", *_hits(found)],
        ],
        note=f"{several} with positive test rows of items new to them; {count(found.items)} {which}, without those of "
        f"the user's training and validation rows. At most {K} of a user's items can be found, and at most as many "
        f"count. Interval: bootstrap over users, {DRAWS:,} replicates.",
    )
    return [*blocks, table]


def _hits(found: Against) -> list[str]:
    model, popular = float((found.model > 0).mean()), float((found.popular > 0).mean())
    return [percent(model), percent(popular), _points(model - popular), ""]


def _points(share: float) -> str:
    return f"{100 * share:+.1f}"


def _ends(low: float, high: float) -> str:
    return f"{_points(low)} to {_points(high)}"


def _left_out(why: str) -> Section:
    return Section(title=TITLE, blocks=[Note(text=f"Omitted: {why}.")])
