"""Means of labels are found for every kind of label, and those that a row may know are not."""

import numpy as np
import polars as pl
from chunks_lab import prepare

import fieldwise
from fieldwise import Categorical, Label, Numeric, RandomSplit, Schema
from fieldwise.auditing.detectors import strong_findings
from fieldwise.auditing.table import of_prepared

RNG = np.random.default_rng(11)
ROWS = 3000
USERS = RNG.integers(0, 150, ROWS)
RATINGS = np.clip(np.round(RNG.normal(3.4, 1.1, ROWS)), 1, 5).astype(int)


def mean_by_user(values):
    return np.bincount(USERS, values, 150)[USERS] / np.bincount(USERS, minlength=150)[USERS]


def findings_on_x(column, labels):
    frame = pl.DataFrame({"u": USERS, "x": column, "z": RNG.normal(size=ROWS), "label": labels})
    report = fieldwise.audit(frame, "label")
    return {(f.severity, f.kind) for f in report.findings if f.column == "x"}


def test_a_mean_with_the_own_label_is_found_for_every_kind_of_label(subtests):
    names = np.array(["shoes", "bags", "hats"])[RATINGS % 3]
    for kind, labels, numbers in [
        ("binary", (RATINGS > 3).astype(int), RATINGS > 3),
        ("ratings", RATINGS, RATINGS),
        ("numbers", RATINGS * 7.25 + 0.5, RATINGS * 7.25 + 0.5),
        ("texts", names, names == "bags"),
    ]:
        with subtests.test(kind):
            assert ("high", "own-label") in findings_on_x(mean_by_user(numbers), labels)


def test_a_mean_is_found_where_a_few_rows_of_large_users_were_left_out(subtests):
    rng = np.random.default_rng(3)
    users = np.minimum(rng.pareto(1.2, 20_000) * 40, 899).astype(int)
    labels = (rng.random(20_000) < 0.23).astype(int)
    frame = pl.DataFrame({"u": users, "z": rng.normal(size=20_000), "label": labels})
    sizes = frame["u"].value_counts(sort=True)["u"]
    left_out = [np.flatnonzero((users == user) & (labels == 1))[0] for user in sizes[:4]]
    for prior_rows in (0, 20):
        with subtests.test(prior_rows):
            clicks = pl.col("label").sum().over("u") + 0.23 * prior_rows
            with_mean = frame.with_columns(x=clicks / (pl.len().over("u") + prior_rows))
            table = (
                with_mean.with_row_index("row").filter(~pl.col("row").is_in(left_out)).drop("row")
            )
            found = fieldwise.audit(table, "label").findings
            assert [(f.kind, f.column) for f in found if f.severity == "high"] == [
                ("own-label", "x")
            ]


def test_a_mean_of_other_labels_is_not_found():
    others = RNG.permutation(RATINGS)
    assert findings_on_x(mean_by_user(others), RATINGS) == set()


def test_a_number_that_follows_later_labels_is_found_without_names_of_ids():
    later = np.full(ROWS, np.nan)
    for user in range(150):
        rows = np.flatnonzero(user == USERS)
        for place, row in enumerate(rows[:-1]):
            later[row] = RATINGS[rows[place + 1 : place + 4]].mean()
    times = np.sort(RNG.integers(1_600_000_000, 1_610_000_000, ROWS))
    frame = pl.DataFrame(
        {"b1": USERS, "b3": times, "x": later, "z": RNG.normal(size=ROWS), "y": RATINGS}
    )
    (finding,) = fieldwise.audit(frame, "y").failing("high")
    assert (finding.kind, finding.column) == ("later-labels", "x")


def test_a_mean_of_labels_is_found_in_more_rows_than_are_looked_at(subtests):
    rows, users = 80_000, 2_000
    rng = np.random.default_rng(5)
    user = rng.integers(0, users, rows)
    y = (rng.random(rows) < 0.4).astype(int)
    mean = (np.bincount(user, y, users) / np.bincount(user, minlength=users))[user]
    frame = pl.DataFrame({"user_id": user, "x": mean, "z": rng.random(rows), "y": y})
    fields = (Categorical("user_id"), Numeric("x"), Numeric("z"))
    for name, roles in [("users", {"user": "user_id"}), ("items", {"item": "user_id"})]:
        with subtests.test(name):
            schema = Schema(fields=fields, label=Label("y"), **roles)
            prepared = prepare(frame, schema, split=RandomSplit(), seed=0)
            table = of_prepared(prepared, schema, RandomSplit())
            assert 59_000 < len(table) <= 60_000
            whole = frame.group_by("user_id").len().sort("user_id")
            drawn = table.frame.group_by("user_id").len().sort("user_id")
            assert drawn.join(whole, on=["user_id", "len"], how="anti").is_empty()
            assert [(f.kind, f.column) for f in strong_findings(table)] == [("own-label", "x")]
            parts = (prepared.train, prepared.valid, prepared.test)
            labels = [
                parts[part].main[row] for part, row in zip(table.part, table.rows, strict=True)
            ]
            assert labels == table.y.tolist()


def test_a_share_without_an_interval_states_none():
    labels = (RATINGS > 3).astype(int)
    frame = pl.DataFrame({"u": USERS, "x": mean_by_user(labels), "label": labels})
    report = fieldwise.audit(frame, "label")
    (finding,) = [f for f in report.findings if f.kind == "own-label"]
    assert finding.sentence.endswith("(variance explained by that 1.0000)")
    (plain,) = [f for f in report.to_plain()["findings"] if f["kind"] == "own-label"]
    assert plain["strength"] == {"value": 1.0, "low": None, "high": None}
