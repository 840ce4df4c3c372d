"""Tables with planted faults whose answer is known, strong and weak, and clean ones: a log of users and items."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from fieldwise import ColumnSplit, LeaveLastOutSplit, RandomSplit, TimeSplit

ROWS = 4000
START = 1_600_000_000


@dataclass(frozen=True)
class Fault:
    """A planted fault: the kinds of findings that name it, and the column (None for the whole table)."""

    name: str
    is_strong: bool
    frame: pl.DataFrame
    split: object
    kinds: frozenset[str]
    column: str | None


def clean_log(seed: int = 0, rows: int = ROWS) -> pl.DataFrame:
    """An honest log: 200 users rate 120 items, tastes and prices matter, nothing knows the label."""
    rng = np.random.default_rng(seed)
    user = rng.integers(0, 200, rows)
    item = rng.integers(0, 120, rows)
    time = np.sort(START + rng.integers(0, 90 * 86400, rows))
    price = rng.gamma(3, 8, 120).round(2)[item]
    age = rng.integers(18, 70, 200)[user]
    genre = rng.integers(0, 8, 120)[item]
    device = rng.choice(["phone", "tablet", "laptop"], rows)
    taste = rng.normal(0, 0.8, 200)[user] + rng.normal(0, 0.8, 120)[item]
    logit = taste - 0.02 * (price - 24) + 0.3 * (device == "phone") - 0.4
    label = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    note = [f"note {k}" for k in rng.integers(1000, 9999, rows)]
    return pl.DataFrame(
        {
            "user_id": [f"u{k}" for k in user],
            "item_id": [f"i{k}" for k in item],
            "time": time,
            "price": price,
            "age": age,
            "genre": [f"g{k}" for k in genre],
            "device": device,
            "dwell": rng.gamma(2, 10, rows).round(1),
            "note": note,
            "liked": label,
        }
    )


def _by_key(frame: pl.DataFrame, key: str, value: pl.Expr) -> np.ndarray:
    return frame.select(value.over(key)).to_series().to_numpy()


def faults(seed: int = 0) -> list[Fault]:  # noqa: PLR0915  # a list, a line a fault
    """Fifty-six faults, 29 strong and 27 weak."""
    planted = []
    rng = np.random.default_rng(seed + 100)
    log = clean_log(seed)
    y = log["liked"].to_numpy()
    n = log.height
    some = rng.random(n)
    noise = rng.normal(size=n)
    in_order = log.sort("time")

    def add(name, strong, values, kinds, *, base=log, split=None, column="x"):
        frame = base if values is None else base.with_columns(pl.Series("x", values, strict=False))
        planted.append(Fault(name, strong, frame, split, frozenset(kinds.split()), column))

    alone = "predicts-alone pure-values adds-most"
    price = (some * 90).round(2)
    add("copy of the label", True, y * 3.0 + some / 9, alone)
    add("inverted copy", True, 5 - y + some / 9, alone)
    add("reason code", True, np.where(y > 0, "bought", "left"), alone)
    add("status with noise", True, np.where(rng.random(n) < 0.01, 1 - y, y), alone)
    add(
        "filled for one class",
        True,
        [v if t else None for v, t in zip(price, y, strict=True)],
        "absence",
    )
    add(
        "decimals", True, [f"{v:.{1 + 2 * t}f}" for v, t in zip(price, y, strict=True)], "precision"
    )
    add("length", True, ["n" * (4 + 5 * t) + str(k % 97) for k, t in enumerate(y)], "length")
    add(
        "sorted by the label",
        True,
        None,
        "row-order",
        base=log.drop("time").sort("liked"),
        column=None,
    )
    add(
        "mean of the user's labels",
        True,
        _by_key(log, "user_id", pl.col("liked").mean()),
        "own-label",
    )
    add(
        "mean of the item's labels",
        True,
        _by_key(log, "item_id", pl.col("liked").mean()),
        "own-label",
    )
    others = (pl.col("liked").sum() - pl.col("liked")) / (pl.len() - 1)
    add("mean of the user's other labels", True, _by_key(log, "user_id", others), "own-label")
    smooth = (pl.col("liked").sum() + 10 * y.mean()) / (pl.len() + 10)
    add("smoothed mean", True, _by_key(log, "item_id", smooth), "own-label")
    later = (pl.col("liked").sum() - pl.col("liked").cum_sum()) / (
        pl.len() - pl.col("liked").cum_count()
    )
    add(
        "mean of later labels",
        True,
        _by_key(in_order, "user_id", later),
        "own-label later-labels",
        base=in_order,
    )
    add("shipped after the order", True, log["time"].to_numpy() + 86400 * (1 + some), "later-time")
    is_test = rng.random(n) < 0.2
    part = np.where(is_test, "test", np.where(rng.random(n) < 0.1, "valid", "train"))
    parted = log.with_columns(part=pl.Series(part))
    column_split = ColumnSplit(column="part")
    copied = _with_copies(parted, 0.5, rng)
    add("copied test rows", True, None, "equal-rows", base=copied, split=column_split, column=None)
    add(
        "random split of a timed log",
        True,
        None,
        "split-against-time",
        split=RandomSplit(),
        column=None,
    )
    add(
        "scaled over all rows",
        True,
        _standard(noise * 3 + 5),
        "learned-on-all-rows",
        base=parted,
        split=column_split,
    )
    add(
        "other scale in test",
        True,
        noise + 3.0 * is_test,
        "tells-the-part",
        base=parted,
        split=column_split,
    )
    drawn, context = _drawn_negatives(rng, 1.0)
    add("context of the positives", True, None, "drawn-negatives", base=drawn, column=context)
    entity = rng.integers(0, 150, n)
    flipped = parted.with_columns(
        x=pl.Series([f"d{k}" for k in entity]), liked=pl.Series((entity % 2).astype(int))
    )
    add(
        "identity of a device",
        True,
        None,
        "identity predicts-alone pure-values",
        base=flipped,
        split=column_split,
    )

    add("noisy copy", False, y * 1.9 + noise, alone)
    add("noisier copy", False, y * 1.6 + noise, alone)
    add(
        "copy of 40 %",
        False,
        np.where(some < 0.4, y * 100.0, (rng.normal(50, 50, n)).round(3)),
        alone,
    )
    add(
        "copy of 20 %",
        False,
        np.where(some < 0.2, y * 100.0, (rng.normal(50, 50, n)).round(3)),
        alone,
    )
    add("reason for 30 %", False, np.where((y > 0) & (some < 0.3), "refund", "none"), alone)
    add("reason for 15 %", False, np.where((y > 0) & (some < 0.15), "refund", "none"), alone)
    add(
        "empty in a third of a class",
        False,
        [None if t and s < 0.33 else v for t, s, v in zip(y, some, price, strict=True)],
        "absence",
    )
    few = [None if s < (0.6 if t else 0.03) else v for t, s, v in zip(y, some, price, strict=True)]
    add("emptier in a class", False, few, "absence")
    dec = [f"{v:.{1 + 2 * (t if s < 0.7 else 0)}f}" for v, t, s in zip(price, y, some, strict=True)]
    add("decimals of most", False, dec, "precision pure-values")
    lengths = [
        "n" * (4 + 5 * (t if s < 0.75 else 0)) + str(k % 97)
        for k, (t, s) in enumerate(zip(y, some, strict=True))
    ]
    add("length of most", False, lengths, "length pure-values")
    add(
        "rounded mean of the user's labels",
        False,
        _by_key(log, "user_id", pl.col("liked").mean()).round(2),
        "own-label",
    )
    pair = _by_key(log.with_columns(k=pl.concat_str("genre", "device")), "k", others)
    add("mean of other labels of a pair", False, pair, "own-label")
    running = pl.col("liked").cum_sum() / pl.col("liked").cum_count()
    add(
        "mean up to and with the row",
        False,
        _by_key(in_order, "user_id", running),
        "own-label",
        base=in_order,
    )
    half_late = log["time"].to_numpy() + np.where(some < 0.06, 86400, -86400)
    add("some times are late", False, half_late, "later-time")
    add(
        "a tenth copied",
        False,
        None,
        "equal-rows",
        base=_with_copies(parted, 0.1, rng),
        split=column_split,
        column=None,
    )
    near = _with_copies(parted, 0.3, rng, change="dwell")
    add("nearly copied", False, None, "near-equal-rows", base=near, split=column_split, column=None)
    filled = np.where(some < 0.05, np.nan, noise + 0.4 * is_test)
    filled = np.where(np.isnan(filled), np.nanmean(filled), filled)
    add(
        "filled by the mean of all rows",
        False,
        filled,
        "learned-on-all-rows",
        base=parted,
        split=column_split,
    )
    add(
        "shifted in test",
        False,
        noise + 0.8 * is_test,
        "tells-the-part",
        base=parted,
        split=column_split,
    )
    weak, context = _drawn_negatives(rng, 0.15)
    add("context of a few negatives", False, None, "drawn-negatives", base=weak, column=context)
    add("leave-last-out", False, None, "split-against-time", split=LeaveLastOutSplit(), column=None)

    # groups on both sides
    visit = pl.Series("session_id", [f"v{k // 4}" for k in range(n)])
    add(
        "sessions split by rows",
        True,
        None,
        "groups-apart",
        base=parted.with_columns(visit),
        split=column_split,
        column="session_id",
    )
    user = log["user_id"].str.tail(-1).cast(int).to_numpy()
    by_user = np.where(user % 5 == 0, "test", np.where(user % 10 == 1, "valid", "train"))
    strays = np.where(rng.random(n) < 0.06, "train", by_user)
    add(
        "some rows of test users in training",
        False,
        None,
        "groups-apart",
        base=log.drop("time").with_columns(part=pl.Series(strays)),
        split=column_split,
        column="user_id",
    )

    # copies of events
    add("snapshots", True, None, "changed-copies", base=_snapshots(log, y, 0.4, 1.0, rng))
    add("some later changes", False, None, "changed-copies", base=_snapshots(log, y, 0.1, 0.2, rng))
    flat = log.drop("user_id", "item_id", "time", "note")
    add(
        "contradicting labels",
        True,
        None,
        "contradictions",
        base=_contradicting(flat, 0.3),
        column=None,
    )
    add(
        "some contradicting labels",
        False,
        None,
        "contradictions",
        base=_contradicting(flat, 0.06),
        column=None,
    )
    add(
        "copies but for noise",
        False,
        None,
        "near-equal-rows",
        base=_with_noisy_copies(parted.drop("note"), 0.3, rng),
        split=column_split,
        column=None,
    )

    # labels of groups, and few rows
    add(
        "users of one label",
        True,
        None,
        "one-class-groups",
        base=log.with_columns(liked=pl.Series((user % 3 == 0).astype(int))),
        column="user_id",
    )
    mostly = np.where(user % 10 < 6, user % 2, y)
    add(
        "most users of one label",
        False,
        None,
        "one-class-groups",
        base=log.with_columns(liked=pl.Series(mostly)),
        column="user_id",
    )
    for name, strong, rows in (("60 test rows", True, 60), ("400 test rows", False, 400)):
        few_rows = np.where(np.arange(n) < rows, "test", "train")
        add(
            name,
            strong,
            None,
            "underpowered",
            base=log.with_columns(part=pl.Series(rng.permutation(few_rows))),
            split=ColumnSplit(column="part", valid_share=0.1),
            column=None,
        )

    # prepared elsewhere
    reach = (noise - noise.min()) / (noise.max() - noise.min())
    add(
        "scaled to 0 and 1 over all rows",
        True,
        reach,
        "learned-on-all-rows",
        base=_test_has(parted, reach),
        split=column_split,
    )
    codes = rng.permutation(n) // 2
    add(
        "vocabulary of all rows",
        True,
        codes,
        "learned-on-all-rows",
        base=parted,
        split=column_split,
    )

    # other labels
    amount = np.exp(rng.normal(3, 1, n))
    sold = log.with_columns(liked=pl.Series(amount))
    add("scaled copy of an amount", True, amount * 1.19 + 3, alone, base=sold)
    add(
        "a fifth of an amount",
        False,
        np.where(some < 0.2, amount, rng.permutation(amount)),
        "equals-label",
        base=sold,
    )
    grade = rng.choice(["a", "b", "c", "d"], n)
    graded = log.with_columns(liked=pl.Series(grade))
    add("class under another name", True, [f"k{ord(g) % 7}" for g in grade], alone, base=graded)
    return planted


def _snapshots(frame: pl.DataFrame, y: np.ndarray, copied: float, changed: float, rng):
    """The log with later snapshots of some events, in which `x` of some has changed."""
    first = frame.with_columns(x=pl.Series(rng.integers(0, 5, frame.height)))
    later = first.filter(pl.Series(rng.random(frame.height) < copied))
    is_changed = pl.Series(rng.random(later.height) < changed)
    later = later.with_columns(x=pl.when(is_changed).then(9).otherwise(pl.col("x")))
    return pl.concat([first, later]).sort("time")


def _contradicting(frame: pl.DataFrame, share: float) -> pl.DataFrame:
    """The table with copies of some rows that have the other label."""
    copies = frame.head(int(share * frame.height)).with_columns(liked=1 - pl.col("liked"))
    return pl.concat([frame, copies])


def _with_noisy_copies(frame: pl.DataFrame, share: float, rng) -> pl.DataFrame:
    """`_with_copies` whose numbers differ by a thousandth."""
    copied = _with_copies(frame, share, rng)
    noisy = copied["price"] * (1 + rng.normal(0, 1e-3, frame.height))
    dwell = copied["dwell"] * (1 + rng.normal(0, 1e-3, frame.height))
    return copied.with_columns(price=noisy, dwell=dwell)


def _test_has(frame: pl.DataFrame, values: np.ndarray) -> pl.DataFrame:
    """The table with the rows of the lowest and highest value in the test part."""
    part = frame["part"].to_numpy().copy()
    part[[values.argmin(), values.argmax()]] = "test"
    return frame.with_columns(part=pl.Series(part))


def _standard(values: np.ndarray) -> np.ndarray:
    return (values - values.mean()) / values.std()


def _with_copies(frame: pl.DataFrame, share: float, rng, change: str | None = None) -> pl.DataFrame:
    """The table with a share of its test rows replaced by training rows, in all columns or all but one."""
    part = frame["part"].to_numpy()
    test = np.flatnonzero(part == "test")
    train = np.flatnonzero(part == "train")
    replaced = test[: int(share * len(test))]
    numbers = np.arange(frame.height)
    numbers[replaced] = rng.choice(train, len(replaced), replace=False)
    copied = frame[numbers].with_columns(part=frame["part"])
    if change is not None:
        changed = copied[change].to_numpy().copy()
        changed[replaced] = rng.gamma(2, 10, len(replaced)).round(3)
        copied = copied.with_columns(pl.Series(change, changed))
    return copied


def _drawn_negatives(rng, share: float) -> tuple[pl.DataFrame, str]:
    """A log with two drawn negatives a positive, whose shop of an item is drawn too in a share of them."""
    shop = rng.integers(0, 6, 120)
    user = rng.integers(0, 200, 1500)
    item = rng.integers(0, 120, 1500)
    negative_user = np.repeat(user, 2)
    negative_item = rng.integers(0, 120, 3000)
    is_other = rng.random(3000) < share
    negative_shop = np.where(is_other, rng.integers(0, 6, 3000), shop[negative_item])
    frame = pl.DataFrame(
        {
            "user_id": [f"u{k}" for k in np.r_[user, negative_user]],
            "item_id": [f"i{k}" for k in np.r_[item, negative_item]],
            "shop": [f"s{k}" for k in np.r_[shop[item], negative_shop]],
            "hour": rng.integers(0, 24, 4500),
            "clicked": np.r_[np.ones(1500, int), np.zeros(3000, int)],
        }
    )
    return frame[rng.permutation(4500)], "shop"


def striking_tables() -> list[tuple[str, pl.DataFrame, object]]:
    """Honest tables that look like a fault: one may be asked to look, and nothing is high."""
    rng = np.random.default_rng(11)
    rows = 3000
    log = clean_log(7, rows).drop("note")
    plan = log.with_columns(due=pl.col("time") + 30 * 86400)
    odour = rng.choice(list("abcdefgn"), rows, p=[0.1, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05, 0.5])
    bad = np.where(odour == "n", rng.random(rows) < 0.06, np.isin(odour, list("cdefg"))).astype(int)
    flat = log.drop("user_id", "item_id", "time")
    mushrooms = flat.with_columns(odour=pl.Series(odour), liked=pl.Series(bad))
    answers = {f"q{k}": rng.integers(1, 4, rows) for k in range(4)}
    agrees = rng.random(rows) < answers["q0"] / 4
    survey = pl.DataFrame({**answers, "q4": answers["q1"] * 2, "liked": agrees.astype(int)})
    return [
        ("a planned date", plan, None),
        ("odour of mushrooms", mushrooms, None),
        ("answers that repeat", survey, RandomSplit()),
        ("rates out of fold of four cities", _out_of_fold(rng), RandomSplit()),
    ]


def _out_of_fold(rng, rows: int = 20_000) -> pl.DataFrame:
    """A log whose `rate` is the mean label of a city in the other four fifths of the rows."""
    city = rng.integers(0, 12, rows)
    label = (rng.random(rows) < np.linspace(0.1, 0.8, 12)[city]).astype(int)
    fold = rng.integers(0, 5, rows)
    rate = np.empty(rows)
    for k in range(5):
        others = fold != k
        sums = np.bincount(city[others], weights=label[others])
        rate[~others] = (sums / np.bincount(city[others]))[city[~others]]
    columns = {"city": [f"c{k}" for k in city], "rate": rate, "z": rng.normal(size=rows)}
    return pl.DataFrame({**columns, "liked": label})


def clean_tables() -> list[tuple[str, pl.DataFrame, object]]:
    """Eight tables without a fault, with the split that is audited."""
    log = clean_log(7)
    rng = np.random.default_rng(3)
    past = log.sort("time").with_columns(
        x=((pl.col("liked").cum_sum() - pl.col("liked")) / (pl.col("liked").cum_count() - 1)).over(
            "user_id"
        )
    )
    flat = log.drop("user_id", "item_id", "time")
    drawn, _ = _drawn_negatives(rng, 0.0)
    missing = log.with_columns(
        age=pl.Series(np.where(rng.random(log.height) < 0.2, np.nan, log["age"].to_numpy()))
    )
    return [
        ("log", log, None),
        ("log by time", log, TimeSplit()),
        ("log with rates of the past", past, TimeSplit()),
        ("flat", flat, RandomSplit()),
        ("small", clean_log(8, 300), None),
        ("drawn negatives with their own context", drawn, None),
        ("missing at random", missing, TimeSplit()),
        (
            "strong but honest",
            flat.with_columns(x=pl.Series(0.9 * log["liked"] + rng.normal(size=log.height))),
            None,
        ),
    ]
