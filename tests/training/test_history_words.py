"""The words of a history."""

import pytest

from fieldwise.training.history import Evaluation, History


@pytest.mark.parametrize(("epochs", "words"), [(1, "1 epoch"), (2, "2 epochs")])
def test_one_epoch_is_singular(epochs: int, words: str) -> None:
    best = Evaluation(epoch=1.0, learning_rate=0.1, seconds=1.0, metrics={"auc": 0.5})
    ended = History(
        epochs=epochs, best=best, evaluations=(best,), seconds=1.0, monitor="auc", stopped="epochs"
    )
    assert f"stopped by epochs after {words}, 1.0 s" in ended._repr_html_()


@pytest.mark.parametrize(("priors", "words"), [(1, "1 prior"), (15, "15 priors")])
def test_a_regression_that_was_solved_has_priors_and_no_epochs(priors: int, words: str) -> None:
    best = Evaluation(epoch=1.0, learning_rate=0.1, seconds=1.0, metrics={"auc": 0.5})
    solved = History(
        epochs=priors,
        best=best,
        evaluations=(best,),
        seconds=1.0,
        monitor="auc",
        stopped="converged",
    )
    html = solved._repr_html_()
    assert f"solved exactly with {words}, 1.0 s" in html
    assert "stopped by" not in html
