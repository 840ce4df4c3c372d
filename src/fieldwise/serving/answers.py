"""Results of bundles as plain values, also for several requests at once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import polars as pl
from torch import nn

from fieldwise.bundle.bundle import Bundle
from fieldwise.explain.explanation import explain
from fieldwise.explain.measured_pairs import measured_pairs
from fieldwise.models.afm import AFMNetwork
from fieldwise.models.fm import FMNetwork
from fieldwise.serving.faults import FAULTS

__all__ = ["Predicted", "explanations", "item_answers", "measures_pairs", "only_answer", "predictions", "tried"]

A = TypeVar("A")
T = TypeVar("T")
Predicted = list[dict[str, float]]


def predictions(bundle: Bundle, frame: pl.DataFrame) -> Predicted:
    """Score and prediction of each row, by label if there are several."""
    score = bundle.score(frame)
    prediction = bundle.prediction(score)
    names = [label.name for label in bundle.schema.labels]
    if len(names) == 1:
        return [{"score": float(s), "prediction": float(p)} for s, p in zip(score, prediction, strict=True)]
    parts = {f"{name}.score": score[:, column] for column, name in enumerate(names)}
    parts |= {f"{name}.prediction": prediction[:, column] for column, name in enumerate(names)}
    return [{name: float(values[row]) for name, values in parts.items()} for row in range(len(score))]


def explanations(bundle: Bundle, frame: pl.DataFrame, *, pairs: bool) -> list[dict[str, Any]]:
    """Explanations of rows; with `pairs`, pairs of fields are measured if the model has no pair terms."""
    found = explain(bundle, frame)
    explained = [found.row(number) for number in range(frame.height)]
    for number, one in enumerate(explained):
        if pairs and "pairs" not in one:
            one["measured_pairs"] = measured_pairs(found, number)
    return explained


def measures_pairs(bundle: Bundle) -> bool:
    """Whether `explanations` with `pairs` measures them, which takes long, since the model has no pair terms."""
    network = cast(nn.ModuleList, bundle.network.heads)[0] if bundle.schema.more_labels else bundle.network
    return not isinstance(network, FMNetwork | AFMNetwork)


def item_answers(
    ids: Sequence[str] | pl.Series, shown: pl.DataFrame, places: np.ndarray, scores: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    """Items with their columns as JSON values, and their scores.

    Args:
        ids: ids of the whole catalogue.
        shown: its columns as shown in responses; read row by row, because gathering rows would start as many threads
            as there are cores.
        places: positions of the items in the catalogue.
        scores: scores of these items, by name.

    >>> item_answers(["a", "b"], pl.DataFrame({"title": ["One", "Two"]}), np.array([1]), {"prediction": np.array([.5])})
    [{'id': 'b', 'prediction': 0.5, 'fields': {'title': 'Two'}}]
    """
    columns = {name: values.tolist() for name, values in scores.items()}
    return [
        {
            "id": ids[place],
            **{name: values[n] for name, values in columns.items()},
            "fields": dict(zip(shown.columns, shown.row(place), strict=True)),
        }
        for n, place in enumerate(places.tolist())
    ]


def tried(call: Callable[[A], T], given: A) -> T | BaseException:
    """The result of a call, or the exception that it raised, so that other requests are not affected.

    >>> tried(len, [1, 2])
    2
    """
    try:
        return call(given)
    except FAULTS as e:
        return e


def only_answer(answers: list[T | BaseException]) -> T:
    """The result of a single request.

    Errors:
        BaseException: the request failed.
    """
    (answer,) = answers
    if isinstance(answer, BaseException):
        raise answer
    return answer
