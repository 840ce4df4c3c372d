"""The words of a history."""

import pytest

from fieldwise.training.history import Evaluation, History


@pytest.mark.parametrize(("epochs", "words"), [(1, "1 epoch"), (2, "2 epochs")])
def test_one_epoch_is_singular(epochs: int, words: str) -> None:
    best = Evaluation(epoch=1.0, learning_rate=0.1, seconds=1.0, metrics={"auc": 0.5})
    ended = History(epochs=epochs, best=best, evaluations=(best,), seconds=1.0, monitor="auc", stopped="epochs")
    assert f"stopped by epochs after {words}, 1.0 s" in ended._repr_html_()
