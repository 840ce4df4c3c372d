"""Exact regressions: first-order weights at the minimum of their convex loss, with priors weighed on validation rows.

Letters: N rows, R rows of the shared embedding table.
"""

import math
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import nn

from fieldwise.config import to_plain
from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError
from fieldwise.evaluation.metrics import METRICS
from fieldwise.layers import FirstOrder
from fieldwise.layout import Layout
from fieldwise.scoring.batches import SCORING_BATCH, score_batches
from fieldwise.training.callbacks import OutOfTime, TrainingStart, TrainingStep, watched
from fieldwise.training.history import Evaluation, History
from fieldwise.training.objective import Objective, evaluate, monitored
from fieldwise.training.optimizers import l2_strengths
from fieldwise.training.step import base_score, move_to_device

if TYPE_CHECKING:
    from fieldwise.training.fit import Training

# prior variances of all weights: scikit-learn's `C`
ALIKE = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
# factors of the variances that the training rows suggest for each field
BY_FIELD = (0.1, 0.3, 1.0, 3.0, 10.0)
LEAST_VARIANCE = 1e-3
FIRST_VARIANCE = 0.3
MOST_VARIANCE = 10.0
ROUNDS = 8  # of the estimate of these variances
# natural logarithm: weaker priors are not tried when the validation likelihood has fallen by e^20
HOPELESS = 20.0
LEAST_SHARE = 1e-4
SHARES = np.linspace(0.0, 1.0, 101)  # of a network in its mean with LR
# of L-BFGS
DECREASE = 1e-10
MOST_STEPS = 1_000
MEMORY = 20
# at the solution of a given prior; of priors that are weighed
GRADIENT = 1e-6
ROUGH_GRADIENT = 1e-5
# names of priors; those of one variance are its number
GIVEN = "given"
FIELDS = "fields "

CHUNK_ROWS = 1 << 16  # between chunks a deadline is asked

OnProgress = Callable[[float | None], None]


def design_matrix(table: EncodedTable) -> Any:
    """The rows as a sparse matrix [N, R], whose product with first-order weights is the sum over the fields.

    A category is a 1, a number its value, and a bag's values share a 1 (`mean`) or have one each
    (`sum`).

    >>> ids, none = np.array([[0, 3], [1, 2]]), np.zeros(1, np.int64)
    >>> table = EncodedTable(Layout.of_sizes([2, 2]), ids, np.zeros((2, 0)), none[:0], none)
    >>> design_matrix(table).toarray().tolist()
    [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]
    """
    rows, singles = table.ids.shape
    factors = np.ones((rows, singles))
    factors[:, [f.kind == "value" for f in table.layout.fields if f.kind != "bag"]] = table.values
    row = [np.repeat(np.arange(rows), singles)]
    column = [table.ids.ravel()]
    values = [factors.ravel()]
    if table.bags_per_row:
        means = torch.tensor([f.pooling == "mean" for f in table.layout.fields if f.kind == "bag"])
        row.append(table.bags.segments.numpy() // table.bags_per_row)
        column.append(table.bags.ids.numpy())
        values.append(table.bags.shares(means).numpy())
    places = np.concatenate(row), np.concatenate(column).astype(np.int64)
    return sparse.csr_matrix((np.concatenate(values), places), shape=(rows, table.layout.num_rows))


class _Rows:
    """Rows [N] as matrices of at most 65,536 rows each; `on_progress` is called with None between two of them."""

    def __init__(
        self, table: EncodedTable, objective: Objective, on_progress: OnProgress = lambda _: None
    ) -> None:
        self.table = table
        self.y, self.weight = _targets(table, objective)
        self.binary = objective.task == "binary"
        self.on_progress = on_progress
        # variance of a regression label's residuals: at first losses are a sum of squares
        self.noise = 0.5

    @cached_property
    def parts(self) -> list[Any]:
        """The matrices, in order."""
        rows = len(self.table)
        if rows <= CHUNK_ROWS:
            return [design_matrix(self.table)]
        result = list[Any]()
        for first in range(0, rows, CHUNK_ROWS):
            self.on_progress(None)
            result.append(
                design_matrix(self.table.take(np.arange(first, min(first + CHUNK_ROWS, rows))))
            )
        return result

    def scores(self, solution: np.ndarray) -> np.ndarray:
        """The scores [N] of weights and bias [R + 1]."""
        result = list[np.ndarray]()
        for x in self.parts:
            if result:
                self.on_progress(None)
            result.append(x @ solution[:-1] + solution[-1])
        return np.concatenate(result)

    def sums(self, values: np.ndarray, parts: Sequence[Any]) -> np.ndarray:
        """The product [R] of such matrices, transposed, with values of the rows [N]."""
        result = np.zeros(parts[0].shape[1])
        first = 0
        for x in parts:
            if first:
                self.on_progress(None)
            result += x.T @ values[first : first + x.shape[0]]
            first += x.shape[0]
        return result

    def losses(self, scores: np.ndarray) -> np.ndarray:
        """Negative log-likelihoods [N]."""
        if self.binary:
            return np.asarray(np.logaddexp(0.0, scores) - self.y * scores)
        result: np.ndarray = (scores - self.y) ** 2 / (2 * self.noise)
        return result

    def likelihood(self, scores: np.ndarray) -> float:
        """The log-likelihood of all rows; of a regression label with the residuals' variance that maximizes it."""
        if self.binary:
            return -float(self.weight @ self.losses(scores))
        mean = float(np.average((scores - self.y) ** 2, weights=self.weight))
        return -0.5 * float(self.weight.sum()) * float(np.log(max(mean, np.finfo(np.float64).tiny)))

    def slopes(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first and second derivatives of `losses`."""
        if self.binary:
            p = 1 / (1 + np.exp(-scores))
            return p - self.y, p * (1 - p)
        return (scores - self.y) / self.noise, np.full(len(scores), 1 / self.noise)

    def solution(
        self, precision: np.ndarray, start: np.ndarray, gradient: float = ROUGH_GRADIENT
    ) -> np.ndarray:
        """The weights and the bias [R + 1] of the least loss with Gaussian priors of these precisions [R]."""
        from scipy.optimize import minimize  # imported here: takes a quarter of a second
        from threadpoolctl import threadpool_limits

        total = self.weight.sum()

        def loss(solution: np.ndarray) -> tuple[float, np.ndarray]:
            scores = self.scores(solution)
            w = solution[:-1]
            slope = self.weight * self.slopes(scores)[0]
            value = float(self.weight @ self.losses(scores) + 0.5 * precision @ (w * w)) / total
            self.on_progress(value)
            return value, np.append(
                self.sums(slope, self.parts) + precision * w, slope.sum()
            ) / total

        limits = {"maxiter": MOST_STEPS, "gtol": gradient, "ftol": DECREASE, "maxcor": MEMORY}
        # whose threads wait for each other, on a busy machine for seconds
        with threadpool_limits(1, "blas"):
            result: np.ndarray = minimize(
                loss, start, jac=True, method="L-BFGS-B", options=limits
            ).x
        return result


def _targets(table: EncodedTable, objective: Objective) -> tuple[np.ndarray, np.ndarray]:
    """Targets and weights of rows [N]."""
    assert table.y is not None, "rows have targets"
    weight = np.ones(len(table))
    if table.weight is not None and table.mean_weight is not None:
        weight = np.asarray(table.weight, np.float64) / table.mean_weight
    return np.asarray(table.targets[:, 0], np.float64) / objective.scale, weight


class LRSolution(NamedTuple):
    """A regression: the shares of its priors, weights and bias [R + 1], and its training if it took steps."""

    priors: Mapping[str, float]
    solution: np.ndarray
    history: History | None = None


_last: list[tuple[Any, Any, Objective, LRSolution]] = []  # of the rows that were used last


class Regression:
    """A logistic or linear regression of the first label on all fields, solved for several Gaussian priors.

    The priors have one variance for all weights, as scikit-learn's `C`, or one for each field,
    estimated from the training rows (empirical Bayes); a strength `l2`, as in
    `TrainingSettings.l2`, is the only prior. The mean of solutions is the regression with the mean
    of their weights. `on_progress` is called with the loss at each step of a solution, and with
    None between chunks of rows; what it raises ends that.
    """

    def __init__(
        self,
        train: EncodedTable,
        objective: Objective,
        on_progress: OnProgress = lambda _: None,
        *,
        l2: float | None = None,
    ) -> None:
        self.train = train
        self.objective = objective
        self.on_progress = on_progress
        self.l2 = l2
        self.layout = train.layout
        self.likelihoods: dict[str, float] = {}  # of the validation rows, as logarithms, by prior
        self._solutions: dict[str, np.ndarray] = {}

    @cached_property
    def rows(self) -> _Rows:
        """The training rows as a matrix."""
        return _Rows(self.train, self.objective, self.on_progress)

    def solve(
        self, valid: EncodedTable | History, each: Callable[[np.ndarray], None] | None = None
    ) -> LRSolution:
        """Solve for the priors in turn and weigh them on the validation rows; `each` is called with their scores.

        Priors of one kind become weaker until the likelihood has fallen far below its maximum.
        Given an earlier result its priors are solved for. Without `each` the result for the rows
        that were used last is taken: searches make many.
        """
        for train, judged, objective, solved in _last if each is None else []:
            if train() is self.train and judged() is valid and objective == self.objective:
                return solved
        if not isinstance(valid, History):
            rows = _Rows(valid, self.objective, self.on_progress)
            for kind in [(GIVEN,)] if self.l2 is not None else [ALIKE, BY_FIELD]:
                start = self.start()
                best = -np.inf
                for number in kind:
                    name = (
                        f"{FIELDS}{number:g}"
                        if kind is BY_FIELD
                        else f"{number:g}"
                        if kind is ALIKE
                        else GIVEN
                    )
                    start = self._solved(name, start)
                    scores = rows.scores(start)
                    self.likelihoods[name] = likelihood = rows.likelihood(scores)
                    if each is not None:
                        each(scores)
                    best = max(best, likelihood)
                    if likelihood < best - HOPELESS:
                        break
        result = self.result(valid)
        if self.l2 is None:
            _last[:] = [(weakref.ref(self.train), weakref.ref(valid), self.objective, result)]
        return result

    def result(self, valid: EncodedTable | History) -> LRSolution:
        """The mean of the solutions so far, in the shares of an earlier result if given; or the best constant."""
        shares = valid.priors if isinstance(valid, History) else self.shares
        if not shares:
            return LRSolution(shares, self.start())
        results = [share * self._solved(name, self.start()) for name, share in shares.items()]
        return LRSolution(shares, np.asarray(np.sum(results, axis=0)))

    @property
    def shares(self) -> dict[str, float]:
        """The share of each prior in the mean: in proportion to the likelihood of the validation rows."""
        best = max(self.likelihoods.values(), default=0.0)
        shares = {name: float(np.exp(result - best)) for name, result in self.likelihoods.items()}
        shares = {name: share for name, share in shares.items() if share > LEAST_SHARE}
        return {name: share / sum(shares.values()) for name, share in shares.items()}

    def start(self) -> np.ndarray:
        """Weights of 0 and the best constant score [R + 1]."""
        result: np.ndarray = np.zeros(self.layout.num_rows + 1)
        result[-1] = base_score(
            *_targets(self.train, self.objective), binary=self.objective.task == "binary"
        )
        return result

    def _solved(self, name: str, start: np.ndarray) -> np.ndarray:
        if name in self._solutions:
            return self._solutions[name]
        if name == GIVEN:
            assert self.l2 is not None, "its strength is given"
            precision = np.full(self.layout.num_rows, self.l2 * self.rows.weight.sum())
        elif name.startswith(FIELDS):
            precision = 1 / (float(name.removeprefix(FIELDS)) * self._variances)
        else:
            if self.objective.task == "regression":
                # this sets the variance of the residuals too, before the first solution
                _ = self._variances
            precision = np.full(self.layout.num_rows, 1 / float(name))
        gradient = GRADIENT if name == GIVEN else ROUGH_GRADIENT
        self._solutions[name] = self.rows.solution(precision, start, gradient)
        return self._solutions[name]

    @cached_property
    def _variances(self) -> np.ndarray:
        """The prior variance of each weight [R], equal within a field, of about the largest likelihood.

        Each round solves the regression and sets a field's variance to the mean over its values of
        the squared weight plus its posterior variance, with covariances neglected (an EM step).
        Values that no row has do not count.
        """
        rows = self.rows
        places = [f.all_rows() for f in self.layout.fields if f.shares is None]
        squares = [
            sparse.csr_matrix((x.data**2, x.indices, x.indptr), shape=x.shape) for x in rows.parts
        ]
        seen = (
            np.sum(
                [np.bincount(x.indices, minlength=self.layout.num_rows) for x in rows.parts], axis=0
            )
            > 0
        )
        result = np.full(self.layout.num_rows, FIRST_VARIANCE)
        solution = self.start()
        for _ in range(ROUNDS):
            if not rows.binary:
                rows.noise = (
                    float(np.average((rows.scores(solution) - rows.y) ** 2, weights=rows.weight))
                    or 1.0
                )
            solution = rows.solution(1 / result, solution)
            information = rows.sums(rows.weight * rows.slopes(rows.scores(solution))[1], squares)
            moments = solution[:-1] ** 2 + 1 / (information + 1 / result)
            for place in places:
                if seen[place].any():
                    result[place] = np.clip(
                        moments[place][seen[place]].mean(), LEAST_VARIANCE, MOST_VARIANCE
                    )
        return result


class ExactFit:
    """A fit of a network of first-order weights alone, in place (`optimizer = "lbfgs"`); others are a ConfigError.

    With an L2 strength its one solution is taken, else the mean over the priors of `Regression`.
    Each solution is an evaluation and an epoch of the result; the mean is the last one, and the one
    that is kept. Callbacks are called at every step of a solution.
    """

    def __init__(self, run: "Training") -> None:
        check_solvable(run.train.layout, run.objective)
        self.of = run
        self.first = first_order_of(run.network)
        if len(list(run.network.parameters())) != len(list(self.first.parameters())):
            result = type(run.network).__name__
            raise ConfigError(
                f"optimizer = 'lbfgs' solves a regression, found {result}: set 'adam'"
            )
        self.began = time.perf_counter()
        self.steps = 0
        self.evaluations = list[Evaluation]()
        self.loss = math.nan
        self.monitor = monitored(run.settings, run.objective, grouped=run.valid_group is not None)
        l2 = (
            l2_strengths(run.network, run.settings.l2)["first_order.embedding.weight"]
            if run.settings.l2
            else None
        )
        self.regression = Regression(run.train, run.objective, self._on_progress, l2=l2)

    def run(self) -> History:
        """Solve, and set the network to the mean."""
        start = TrainingStart(
            epochs=2 if self.regression.l2 is not None else len(ALIKE) + len(BY_FIELD) + 1,
            steps=1,
            rows=len(self.of.train),
            monitor=self.monitor,
            refit=isinstance(self.of.valid, History),
            settings={
                **self.of.about,
                "seed": self.of.seed,
                "training": to_plain(self.of.settings),
            },
        )
        return watched(self.of.callbacks, start, self._history)

    def _history(self) -> History:
        valid = self.of.valid
        network = self.of.network
        stopped: Literal["converged", "interrupted", "time"] = "converged"
        try:
            result = self.regression.solve(valid, self._solved)
        except (KeyboardInterrupt, OutOfTime) as e:
            if isinstance(valid, History):
                raise
            stopped = "interrupted" if isinstance(e, KeyboardInterrupt) else "time"
            result = self.regression.result(valid)
        set_first_order(self.first, result.solution)
        move_to_device(self.of.settings.device, network)
        network.eval()
        best = self._evaluated()
        return History(
            epochs=len(self.evaluations) + 1,
            best=best,
            evaluations=(*self.evaluations, best),
            seconds=best.seconds,
            monitor=self.monitor,
            stopped=stopped,
            priors=result.priors,
            rows=len(self.of.train),
        )

    def _on_progress(self, loss: float | None, rows: int = 0) -> None:
        if loss is None:
            for one in self.of.callbacks:
                one.on_part()
            return
        self.steps = self.steps + 1
        self.loss = loss
        for one in self.of.callbacks:
            one.on_step(
                TrainingStep(self.steps, len(self.evaluations) + 1, rows, torch.tensor(self.loss))
            )

    def _solved(self, scores: np.ndarray) -> None:
        self._on_progress(self.loss, len(self.of.train))
        result = self._evaluated(scores)
        self.evaluations.append(result)
        values = [one.metrics[self.monitor] for one in self.evaluations]
        best = max(values) if METRICS[self.monitor].higher else min(values)
        for one in self.of.callbacks:
            one.on_evaluation(result, values[-1] == best)

    def _evaluated(self, scores: np.ndarray | None = None) -> Evaluation:
        of = self.of
        metrics = dict[str, float]()
        by_loss = self.monitor == "loss"
        if not isinstance(of.valid, History):
            metrics = evaluate(
                of.network, of.valid, of.objective, of.valid_group, loss=by_loss, scores=scores
            )
        seconds = time.perf_counter() - self.began
        return Evaluation(
            epoch=len(self.evaluations) + 1.0, learning_rate=0.0, seconds=seconds, metrics=metrics
        )


def share_in_mean(
    network: nn.Module, lr: nn.Module, valid: EncodedTable | History, objective: Objective
) -> float:
    """The share of a trained network in its mean with LR, in hundredths; 1 if that is not better on validation rows.

    It is the mean of all shares in proportion to the likelihood that each gives the validation
    rows, as `Regression` weighs its priors: near one half on few rows, the best share on many. Of
    an earlier result its share is taken.
    """
    if isinstance(valid, History):
        return 1.0 if valid.network_share is None else valid.network_share
    rows = _Rows(valid, objective)
    of_network, of_lr = (
        score_batches(part, valid.batches(SCORING_BATCH)) for part in (network, lr)
    )

    def likelihood(share: float) -> float:
        return rows.likelihood(share * of_network + (1 - share) * of_lr)

    likelihoods = np.array([likelihood(share) for share in SHARES])
    weights = np.exp(likelihoods - likelihoods.max())
    share = round(float(np.average(SHARES, weights=weights)), 2)
    return share if likelihood(share) > likelihood(1.0) else 1.0


def check_solvable(layout: Layout, objective: Objective) -> None:
    """Check that LR can be solved exactly; else a ConfigError."""
    if any(f.kind == "bag" and f.pooling == "max" for f in layout.fields):
        raise ConfigError(
            "an exact regression has sums of weights, found a bag with pooling = 'max'"
        )
    if objective.more:
        raise ConfigError(f"an exact regression has one label, found {1 + len(objective.more)}")


def first_order_of(network: nn.Module) -> FirstOrder:
    """The network's first-order weights and bias; a ConfigError if it lacks either."""
    first = getattr(network, "first_order", None)
    if not isinstance(first, FirstOrder) or first.bias is None:
        raise ConfigError(
            f"a regression has first-order weights and a bias, which {type(network).__name__} has not"
        )
    return first


def set_first_order(first: FirstOrder, solution: np.ndarray) -> None:
    """Set first-order weights and bias to a solution [R + 1]."""
    with torch.no_grad():
        first.embedding.weight.copy_(torch.from_numpy(solution[:-1])[:, None])
        assert first.bias is not None, "checked before"
        first.bias.fill_(float(solution[-1]))
