"""A model that is quick to train, to measure what columns or a split are worth: histogram trees on encoded columns."""

from collections.abc import Sequence

import numpy as np

from fieldwise.auditing.association import PRIOR_ROWS, random_folds
from fieldwise.auditing.table import TEST, TRAIN, AuditedTable
from fieldwise.data.sampling import drawn_rows
from fieldwise.evaluation.interval import Interval

MOST_TRAINED_ROWS = 50_000
MOST_SCORED_ROWS = 50_000
TREES = 60
FEW_VALUES = 12
"""The largest number of different values with which a column of numbers is also read as categories."""


def drawn(rows: np.ndarray, most: int, seed: int) -> np.ndarray:
    """The rows, or `most` random ones of them, in order."""
    return rows if len(rows) <= most else rows[drawn_rows(len(rows), most, seed)]


def scores(
    table: AuditedTable, columns: Sequence[str], train: np.ndarray, test: np.ndarray
) -> np.ndarray:
    """The scores of test rows, by their numbers [M], from a model of some columns trained on training rows [N]."""
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    target = table.main_target
    train_x = []
    test_x = []
    for column in columns:
        for of_train, of_test in _encoded(table, column, target.values, train, test):
            train_x.append(of_train)
            test_x.append(of_test)
    settings = {"max_iter": TREES, "random_state": table.seed, "early_stopping": False}
    x = np.column_stack(train_x)
    if target.is_binary:
        classifier = HistGradientBoostingClassifier(**settings)
        classifier.fit(x, target.values[train].astype(np.int64))
        return np.asarray(classifier.predict_proba(np.column_stack(test_x))[:, 1])
    regressor = HistGradientBoostingRegressor(**settings)
    return np.asarray(regressor.fit(x, target.values[train]).predict(np.column_stack(test_x)))


def separation(
    table: AuditedTable, columns: Sequence[str], train: np.ndarray, test: np.ndarray
) -> Interval:
    """The separation that a model of some columns reaches on test rows."""
    train = drawn(train, MOST_TRAINED_ROWS, table.seed)
    test = drawn(test, MOST_SCORED_ROWS, table.seed)
    return table.main_target.of_rows(test).of_scores(scores(table, columns, train, test))


def held_out(table: AuditedTable) -> tuple[np.ndarray, np.ndarray]:
    """The rows to train on and the rows to measure on: those of the split, else random halves."""
    if table.part is not None:
        return table.rows_of(TRAIN), table.rows_of(TEST)
    first, second = np.array_split(np.random.default_rng(table.seed).permutation(len(table)), 2)
    return np.sort(first), np.sort(second)


def can_learn(table: AuditedTable, *parts: np.ndarray) -> bool:
    """Whether each of some sets of rows has enough rows, of two classes at least ten of each."""
    target = table.main_target
    for rows in parts:
        values = target.values[rows]
        if len(rows) < 50 or values.min() == values.max():
            return False
        if target.is_binary and min(values.sum(), len(values) - values.sum()) < 10:
            return False
    return True


def _encoded(
    table: AuditedTable, column: str, y: np.ndarray, train: np.ndarray, test: np.ndarray
) -> list[tuple[np.ndarray, np.ndarray]]:
    """A column's numbers, and for categories the mean target of a value: of training rows out of fold."""
    encoded = []
    numbers = table.numbers(column)
    if numbers is not None:
        values = numbers.fill_null(float("nan")).to_numpy()
        encoded.append((values[train], values[test]))
        if numbers.n_unique() > FEW_VALUES:
            return encoded
    codes = table.codes(column)
    size = int(codes.max()) + 1
    mean = float(y[train].mean())
    rows = np.bincount(codes[train], minlength=size)
    sums = np.bincount(codes[train], weights=y[train], minlength=size)
    of_test = (sums + PRIOR_ROWS * mean) / (rows + PRIOR_ROWS)
    folds = random_folds(len(train), table.seed)
    of_train = np.empty(len(train))
    for fold in np.unique(folds):
        held = folds == fold
        held_codes = codes[train[held]]
        other_rows = rows - np.bincount(held_codes, minlength=size)
        other_sums = sums - np.bincount(held_codes, weights=y[train[held]], minlength=size)
        means = (other_sums + PRIOR_ROWS * mean) / (other_rows + PRIOR_ROWS)
        of_train[held] = means[held_codes]
    encoded.append((of_train, of_test[codes[test]]))
    return encoded
