"""Exact regressions: first-order weights at the minimum of their convex loss, with priors weighed on validation rows.

Letters: N rows, R rows of the shared embedding table.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor, nn

from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError
from fieldwise.layers import FirstOrder
from fieldwise.layout import Layout
from fieldwise.training.history import History
from fieldwise.training.initialise import base_score
from fieldwise.training.objective import Objective

SHARED_VARIANCES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Prior variances of all weights, scikit-learn's `C`; a prior is named by its number."""
FIELD_FACTORS = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Factors of the prior variances that the training rows suggest for each field."""
FIELDS_PREFIX = "fields "
"""Begins the name of a prior with one variance for each field; its factor follows."""
GIVEN = "given"
"""The name of the prior whose strength a setting gives."""
NEGLIGIBLE_LOG_LIKELIHOOD = 20.0
"""Weaker priors are not tried when the validation likelihood has fallen by e^20."""
LEAST_SHARE_OF_PRIOR = 1e-4

# of the estimate of each field's variance
LEAST_VARIANCE = 1e-3
FIRST_VARIANCE = 0.3
MOST_VARIANCE = 10.0
VARIANCE_ROUNDS = 8

# of L-BFGS; priors that are weighed need a rougher solution than a given one
LBFGS_LEAST_DECREASE = 1e-10
LBFGS_MOST_STEPS = 1_000
LBFGS_MEMORY = 20
LBFGS_GRADIENT = 1e-6
LBFGS_ROUGH_GRADIENT = 1e-5

CHUNK_ROWS = 1 << 16
"""Rows of a chunk; deadlines are checked between chunks."""

OnProgress = Callable[[float | Tensor | None], None]


def design_matrix(table: EncodedTable) -> Any:
    """The rows as a sparse matrix [N, R], whose product with first-order weights is the sum over the fields.

    A category is a 1, a number its value, and a bag's values share a 1 (`mean`) or have one each
    (`sum`). A piecewise linear number is a 1 for its start and a share of each knot beside it: the
    product is with the weights of `Layout.at_knots`.

    >>> ids, none = np.array([[0, 3], [1, 2]]), np.zeros(1, np.int64)
    >>> table = EncodedTable(Layout.of_sizes([2, 2]), ids, np.zeros((2, 0)), none[:0], none)
    >>> design_matrix(table).toarray().tolist()
    [[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]]
    """
    num_rows, num_singles = table.ids.shape
    singles = table.layout.single_fields
    factors = np.ones((num_rows, num_singles))
    factors[:, [f.kind == "value" for f in singles]] = table.values
    factors[:, [f.piecewise for f in singles]] = 1.0

    rows = [np.repeat(np.arange(num_rows), num_singles)]
    columns = [table.ids.ravel()]
    values = [factors.ravel()]
    number_fields = [f for f in singles if f.kind == "value"]
    for f, numbers in zip(number_fields, table.values.T, strict=True):
        if f.piecewise:
            rows_of_numbers, knots, shares = f.knot_entries(numbers)
            rows.append(rows_of_numbers)
            columns.append(knots)
            values.append(shares)
    if table.bags_per_row:
        is_mean = torch.tensor([f.pooling == "mean" for f in table.layout.bag_fields])
        rows.append(table.bags.segments.numpy() // table.bags_per_row)
        columns.append(table.bags.ids.numpy())
        values.append(table.bags.shares(is_mean).numpy())

    coordinates = (np.concatenate(rows), np.concatenate(columns).astype(np.int64))
    shape = (num_rows, table.layout.num_rows)
    return sparse.csr_matrix((np.concatenate(values), coordinates), shape=shape)


class RegressionRows:
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
    def matrices(self) -> list[Any]:
        """The matrices, in order."""
        num_rows = len(self.table)
        if num_rows <= CHUNK_ROWS:
            return [design_matrix(self.table)]
        matrices = list[Any]()
        for first in range(0, num_rows, CHUNK_ROWS):
            self.on_progress(None)
            chunk = self.table.take(np.arange(first, min(first + CHUNK_ROWS, num_rows)))
            matrices.append(design_matrix(chunk))
        return matrices

    def scores(self, solution: np.ndarray) -> np.ndarray:
        """The scores [N] of weights and bias [R + 1]."""
        scores = list[np.ndarray]()
        weights = self.table.layout.at_knots(solution[:-1])
        for x in self.matrices:
            if scores:
                self.on_progress(None)
            scores.append(x @ weights + solution[-1])
        return np.concatenate(scores)

    def sums(self, values: np.ndarray, matrices: Sequence[Any]) -> np.ndarray:
        """The sums [R] over the rows of such matrices, times values of the rows [N], for each weight."""
        sums = np.zeros(matrices[0].shape[1])
        first = 0
        for x in matrices:
            if first:
                self.on_progress(None)
            sums += x.T @ values[first : first + x.shape[0]]
            first += x.shape[0]
        return self.table.layout.from_knots(sums)

    def losses(self, scores: np.ndarray) -> np.ndarray:
        """Negative log-likelihoods [N]."""
        if self.binary:
            return np.asarray(np.logaddexp(0.0, scores) - self.y * scores)
        losses: np.ndarray = (scores - self.y) ** 2 / (2 * self.noise)
        return losses

    def mean_square(self, scores: np.ndarray) -> float:
        """The weighted mean of the squared residuals of a regression label."""
        return float(np.average((scores - self.y) ** 2, weights=self.weight))

    def likelihood(self, scores: np.ndarray) -> float:
        """The log-likelihood of all rows; of a regression label with the residuals' variance that maximizes it."""
        if self.binary:
            return -float(self.weight @ self.losses(scores))
        variance = max(self.mean_square(scores), np.finfo(np.float64).tiny)
        return -0.5 * float(self.weight.sum()) * float(np.log(variance))

    def slopes(self, scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first and second derivatives of `losses`."""
        if self.binary:
            p = 1 / (1 + np.exp(-scores))
            return p - self.y, p * (1 - p)
        return (scores - self.y) / self.noise, np.full(len(scores), 1 / self.noise)

    def solution(
        self, precision: np.ndarray, start: np.ndarray, gradient: float = LBFGS_ROUGH_GRADIENT
    ) -> np.ndarray:
        """The weights and the bias [R + 1] of the least loss with Gaussian priors of these precisions [R]."""
        from scipy.optimize import minimize  # imported here: takes a quarter of a second
        from threadpoolctl import threadpool_limits

        total = self.weight.sum()

        def loss_and_gradient(solution: np.ndarray) -> tuple[float, np.ndarray]:
            scores = self.scores(solution)
            w = solution[:-1]
            penalty = 0.5 * precision @ (w * w)
            loss = float(self.weight @ self.losses(scores) + penalty) / total
            self.on_progress(loss)
            slope = self.weight * self.slopes(scores)[0]
            slope_of_weights = self.sums(slope, self.matrices) + precision * w
            return loss, np.append(slope_of_weights, slope.sum()) / total

        options = {
            "maxiter": LBFGS_MOST_STEPS,
            "gtol": gradient,
            "ftol": LBFGS_LEAST_DECREASE,
            "maxcor": LBFGS_MEMORY,
        }
        # BLAS's threads wait for each other, on a busy machine for seconds
        with threadpool_limits(1, "blas"):
            minimum = minimize(
                loss_and_gradient, start, jac=True, method="L-BFGS-B", options=options
            )
        solution: np.ndarray = minimum.x
        return solution


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

    def set(self, first_order: FirstOrder) -> None:
        """Set first-order weights and bias to it."""
        with torch.no_grad():
            first_order.embedding.weight.copy_(torch.from_numpy(self.solution[:-1])[:, None])
            assert first_order.bias is not None, "checked before"
            first_order.bias.fill_(float(self.solution[-1]))


class Regression:
    """A logistic or linear regression of the first label on all fields, solved for several Gaussian priors.

    The priors have one variance for all weights, as scikit-learn's `C`, or one for each field,
    estimated from the training rows (empirical Bayes); a strength `l2`, as in
    `TrainingSettings.l2`, is the only prior. The mean of solutions is the regression with the mean
    of their weights. `on_progress` is called with the loss at each step of a solution, and with
    None between chunks of rows; what it raises ends that. `on_solution` is called with the scores
    that each solution gives the validation rows.

    Attributes:
        families: names of priors, in each family from the strongest to the weakest.
    """

    def __init__(
        self,
        train: EncodedTable,
        objective: Objective,
        on_progress: OnProgress = lambda _: None,
        on_solution: Callable[[np.ndarray], None] | None = None,
        *,
        l2: float | None = None,
    ) -> None:
        self.train = train
        self.objective = objective
        self.on_progress = on_progress
        self.on_solution = on_solution
        self.l2 = l2
        self.layout = train.layout
        self.families = [[GIVEN]]
        if l2 is None:
            shared = [f"{variance:g}" for variance in SHARED_VARIANCES]
            by_field = [f"{FIELDS_PREFIX}{factor:g}" for factor in FIELD_FACTORS]
            self.families = [shared, by_field]
        self.likelihoods: dict[str, float] = {}  # of the validation rows, as logarithms, by prior
        self._solutions: dict[str, np.ndarray] = {}

    @cached_property
    def rows(self) -> RegressionRows:
        """The training rows as a matrix."""
        return RegressionRows(self.train, self.objective, self.on_progress)

    def solve(self, valid: EncodedTable) -> LRSolution:
        """Solve for the priors in turn, and weigh them on the validation rows.

        Priors of one family become weaker until the likelihood has fallen far below its maximum.
        """
        rows = RegressionRows(valid, self.objective, self.on_progress)
        for priors in self.families:
            solution = self.start()
            best = -np.inf
            for prior in priors:
                solution = self._solution_of(prior, solution)
                scores = rows.scores(solution)
                likelihood = rows.likelihood(scores)
                self.likelihoods[prior] = likelihood
                if self.on_solution is not None:
                    self.on_solution(scores - self._log_odds_of_sample)
                best = max(best, likelihood)
                if likelihood < best - NEGLIGIBLE_LOG_LIKELIHOOD:
                    break

        return self.result()

    def repeat(self, earlier: History) -> LRSolution:
        """Solve for the priors of an earlier training, in its shares."""
        return self._mean(earlier.priors)

    def result(self) -> LRSolution:
        """The mean of the solutions so far, as the validation rows weigh them."""
        return self._mean(self.shares)

    def _mean(self, shares: Mapping[str, float]) -> LRSolution:
        """The mean of solutions in these shares; without any, the best constant."""
        mean = self.start()
        if shares:
            parts = [
                share * self._solution_of(name, self.start()) for name, share in shares.items()
            ]
            mean = np.asarray(np.sum(parts, axis=0))
        mean[-1] -= self._log_odds_of_sample
        return LRSolution(shares, mean)

    @property
    def _log_odds_of_sample(self) -> float:
        """What a solution's scores, which are of the training rows, exceed those of the whole log by."""
        sampled = self.objective.sampled
        return 0.0 if sampled is None else sampled.log_odds

    @property
    def shares(self) -> dict[str, float]:
        """The share of each prior in the mean: in proportion to the likelihood of the validation rows."""
        best = max(self.likelihoods.values(), default=0.0)
        relative = {
            name: float(np.exp(likelihood - best)) for name, likelihood in self.likelihoods.items()
        }
        relevant = {name: share for name, share in relative.items() if share > LEAST_SHARE_OF_PRIOR}
        total = sum(relevant.values())
        return {name: share / total for name, share in relevant.items()}

    def start(self) -> np.ndarray:
        """Weights of 0 and the best constant score [R + 1]."""
        y, weight = _targets(self.train, self.objective)
        start: np.ndarray = np.zeros(self.layout.num_rows + 1)
        start[-1] = base_score(y, weight, binary=self.objective.task == "binary")
        return start

    def _solution_of(self, prior: str, start: np.ndarray) -> np.ndarray:
        """The solution [R + 1] for a prior, searched from `start` if it is not known yet."""
        if prior not in self._solutions:
            gradient = LBFGS_GRADIENT if prior == GIVEN else LBFGS_ROUGH_GRADIENT
            self._solutions[prior] = self.rows.solution(self._precision(prior), start, gradient)
        return self._solutions[prior]

    def _precision(self, prior: str) -> np.ndarray:
        """The precision of each weight [R] that a prior has."""
        if prior == GIVEN:
            assert self.l2 is not None, "its strength is given"
            return np.full(self.layout.num_rows, self.l2 * self.rows.weight.sum())
        if prior.startswith(FIELDS_PREFIX):
            precision: np.ndarray = 1 / (float(prior.removeprefix(FIELDS_PREFIX)) * self._variances)
            return precision
        if self.objective.task == "regression":
            # this sets the variance of the residuals too, before the first solution
            _ = self._variances
        return np.full(self.layout.num_rows, 1 / float(prior))

    @cached_property
    def _variances(self) -> np.ndarray:
        """The prior variance of each weight [R], equal within a field, of about the largest likelihood.

        Each round solves the regression and sets a field's variance to the mean over its values of
        the squared weight plus its posterior variance, with covariances neglected (an EM step).
        Values that no row has do not count. The share of a piece stands for its square.
        """
        rows = self.rows
        num_weights = self.layout.num_rows
        is_knot = np.zeros(num_weights, bool)
        for f in self.layout.fields:
            is_knot[f.piece_rows()] = True
        squares = list[Any]()
        for x in rows.matrices:
            squared = np.where(is_knot[x.indices], x.data, x.data**2)
            squares.append(sparse.csr_matrix((squared, x.indices, x.indptr), shape=x.shape))
        counts = [np.bincount(x.indices, minlength=num_weights) for x in rows.matrices]
        seen = self.layout.from_knots(np.sum(counts, axis=0)) > 0
        weights_by_field = [f.all_rows() for f in self.layout.fields if f.shares is None]

        variances = np.full(num_weights, FIRST_VARIANCE)
        solution = self.start()
        for _ in range(VARIANCE_ROUNDS):
            if not rows.binary:
                rows.noise = rows.mean_square(rows.scores(solution)) or 1.0
            solution = rows.solution(1 / variances, solution)
            curvature = rows.slopes(rows.scores(solution))[1]
            information = rows.sums(rows.weight * curvature, squares)
            moments = solution[:-1] ** 2 + 1 / (information + 1 / variances)
            for weights in weights_by_field:
                if seen[weights].any():
                    mean = moments[weights][seen[weights]].mean()
                    variances[weights] = np.clip(mean, LEAST_VARIANCE, MOST_VARIANCE)
        return variances


def check_solvable(layout: Layout, objective: Objective) -> None:
    """Check that LR can be solved exactly; else a ConfigError."""
    if not layout.is_linear_in_rows:
        raise ConfigError(
            "an exact regression has sums of weights, found a vector or a bag with pooling = 'max': set start_from_lr "
            "and mean_with_lr to false, and of LR the optimizer to 'adam'"
        )
    if objective.more:
        raise ConfigError(f"an exact regression has one label, found {1 + len(objective.more)}")


def first_order_of(network: nn.Module) -> FirstOrder:
    """The network's first-order weights and bias; a ConfigError if it lacks either."""
    first_order = getattr(network, "first_order", None)
    if not isinstance(first_order, FirstOrder) or first_order.bias is None:
        raise ConfigError(
            f"a regression has first-order weights and a bias, which {type(network).__name__} has not"
        )
    return first_order
