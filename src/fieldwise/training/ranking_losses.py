"""Losses that rank: of each row beside the others of its group, a user's or a request's.

Letters: B rows of a batch, G its groups, P pairs. Groups are numbered from 0 [B] in their order in the batch. Every
loss is a sum over the batch's rows divided by B, so that the parts of a batch that several processes
compute add up to it, and L2 strengths weigh as beside logloss. A row of weight 2 counts as the row
twice.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fieldwise.data.table import EncodedTable
from fieldwise.errors import ConfigError, DataError
from fieldwise.evaluation.ranking import LARGEST_GRADE, is_grade
from fieldwise.training.objective import Objective
from fieldwise.training.settings import TrainingSettings

MOST_ROWS_OF_PAIRS = 4_096
"""Of a group: the loss takes about 60 bytes for each two of its rows."""
RankingLoss = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""The loss of scores [B], relevances [B], groups [B] and row weights [B] or None: a scalar."""


def pairwise(
    score: Tensor, relevance: Tensor, group: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The mean of log(1 + exp(s_j - s_i)) over a group's pairs of a row i and a less relevant row j.

    A pair counts by the difference of relevance, which is 1 for a positive and a negative, and a
    group by its rows, as in group AUC. RankNet (Burges et al., ICML 2005), of one positive and one
    negative BPR (Rendle et al., UAI 2009). A group of one relevance has no pairs, and adds 0.

    >>> loss = pairwise(torch.tensor([0.0, 0.0]), torch.tensor([1.0, 0.0]), torch.tensor([0, 0]))
    >>> round(float(loss), 4)  # log 2
    0.6931
    """
    better, worse = pairs(relevance, group)
    groups = _group_count(group)
    mass = _mass(score, weight)
    pair_mass_P = (relevance[better] - relevance[worse]) * mass[better] * mass[worse]
    loss_P = pair_mass_P * F.softplus(score[worse] - score[better])

    group_P = group[better]
    loss_G = score.new_zeros(groups).index_add(0, group_P, loss_P)
    pair_mass_G = score.new_zeros(groups).index_add(0, group_P, pair_mass_P)
    mass_G = score.new_zeros(groups).index_add(0, group, mass)
    has_pairs = pair_mass_G > 0
    mean_G = loss_G / torch.where(has_pairs, pair_mass_G, 1.0)
    return (mass_G * mean_G).sum() / max(1, len(score))


def _group_count(group: Tensor) -> int:
    """G, 0 for a batch without rows."""
    return int(group.max()) + 1 if len(group) else 0


def _mass(score: Tensor, weight: Tensor | None) -> Tensor:
    """How many rows each row counts as [B], in the type of the scores."""
    if weight is None:
        return torch.ones_like(score)
    return weight.to(score.dtype)


def pairs(relevance: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of every pair of one group with different relevance: the more relevant ones [P], the others [P].

    >>> better, worse = pairs(torch.tensor([1.0, 0.0, 1.0, 0.0]), torch.tensor([0, 0, 1, 1]))
    >>> better.tolist(), worse.tolist()
    ([0, 2], [1, 3])
    """
    by_relevance = torch.argsort(relevance, stable=True)
    order = by_relevance[torch.argsort(group[by_relevance], stable=True)]
    position = torch.arange(len(order), device=order.device)
    begins_group = _differs_from_last(group[order])
    begins_tie = begins_group | _differs_from_last(relevance[order])
    group_start = torch.where(begins_group, position, 0).cummax(0).values
    tie_start = torch.where(begins_tie, position, 0).cummax(0).values

    # a row's partners are those of its group before the first of equal relevance
    partners = tie_start - group_start
    better = position.repeat_interleave(partners)
    first_pair = partners.cumsum(0) - partners
    number_in_row = torch.arange(len(better), device=order.device) - first_pair[better]
    worse = group_start[better] + number_in_row
    return order[better], order[worse]


def _differs_from_last(values: Tensor) -> Tensor:
    """Whether each value [B] differs from the one before; the first does."""
    differs = torch.ones(len(values), dtype=torch.bool, device=values.device)
    differs[1:] = values[1:] != values[:-1]
    return differs


def listwise(
    score: Tensor, relevance: Tensor, group: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The sum of r_i (log sum_j exp(s_j) - s_i) over rows i, where j are the rows of i's group, over B.

    The softmax cross-entropy of each relevant row among its group: ListNet's top-one loss (Cao et
    al., ICML 2007) with the relevances r as the target distribution, where a group weighs as much
    as its sum of r. A group without a relevant row adds 0.

    >>> loss = listwise(torch.zeros(2), torch.tensor([1.0, 0.0]), torch.tensor([0, 0]))
    >>> round(float(loss), 4)  # log 2 of two rows
    0.3466
    """
    count = len(score)
    mass = _mass(score, weight)
    if weight is not None:
        # a row that weighs nothing is in no list: its score may be the largest, or its group's only one
        is_in_list = weight > 0
        score = score[is_in_list]
        relevance = relevance[is_in_list]
        group = group[is_in_list]
        mass = mass[is_in_list]
    groups = _group_count(group)
    largest_G = score.new_full((groups,), -torch.inf)
    largest_G = largest_G.scatter_reduce(0, group, score.detach(), "amax")
    shifted = score - largest_G[group]
    sum_G = score.new_zeros(groups).index_add(0, group, mass * shifted.exp())
    loss = mass * relevance * (sum_G.log()[group] - shifted)
    return loss.sum() / max(1, count)


def combined(
    score: Tensor, relevance: Tensor, group: Tensor, weight: Tensor | None = None
) -> Tensor:
    """The logloss plus the listwise loss of probabilities: `listwise` of log sigmoid(s).

    The joint loss of Sheng et al. (KDD 2023, arXiv 2208.06164), which keeps probabilities
    calibrated while it ranks within groups. NOTE[DIFF]: theirs needs two logits a row; this one is
    the form of one logit (Bai et al., CIKM 2023, arXiv 2211.01494), where the softmax is over
    sigmoids: sigmoid(s_i) / sum_j sigmoid(s_j). Both parts are smallest where sigmoid(s_i) is the
    probability of row i, so that neither draws the scores away from it. They are not halved, so
    that L2 weighs no more beside the logloss than without the other part.
    """
    logloss = F.binary_cross_entropy_with_logits(score, relevance, weight=weight, reduction="sum")
    logloss = logloss / max(1, len(score))
    return logloss + listwise(F.logsigmoid(score), relevance, group, weight)


RANKING_LOSSES: Mapping[str, RankingLoss] = {
    "pairwise": pairwise,
    "listwise": listwise,
    "combined": combined,
}
"""By the name that `training.loss` has."""


def checked_groups(
    table: EncodedTable,
    group: np.ndarray | None,
    settings: TrainingSettings,
    objective: Objective,
    *,
    window: int,
) -> tuple[np.ndarray, str | None]:
    """The groups of the training rows [N], and a sentence about those of one class, if there are some.

    `window` is how many rows are read at once.

    Errors:
        ConfigError, DataError: no groups, several labels, a label or rows that the loss cannot rank.
    """
    loss = f"training.loss = {settings.loss!r}"
    if group is None:
        raise ConfigError(
            f"{loss} ranks the rows of a group, but the schema names none: set its group or user, or loss = 'logloss'"
        )
    if objective.more:
        raise ConfigError(
            f"{loss} ranks by one label, found {len(objective.labels)}: omit more_labels, or set loss = 'logloss'"
        )
    if window < len(table):
        raise ConfigError(
            f"{loss} needs all rows of a group at once, wherever they are in the table, but a window has {window:,} "
            f"of {len(table):,} rows: set training.shuffle_rows = {len(table)}, or loss = 'logloss'"
        )
    if objective.task == "regression":
        _check_grades(table.targets[:, 0], settings, objective)

    order = np.argsort(group, kind="stable")
    _, starts, lengths = np.unique(group[order], return_index=True, return_counts=True)
    y = table.targets[order, 0]
    is_one_class = np.minimum.reduceat(y, starts) == np.maximum.reduceat(y, starts)
    if is_one_class.all():
        raise DataError(
            f"{loss} needs a group with rows of different labels, but each of the {len(starts):,} groups has one label "
            "only: set another group, or loss = 'logloss'"
        )
    if settings.loss == "pairwise" and lengths.max() > MOST_ROWS_OF_PAIRS:
        raise DataError(
            f"{loss} compares each two rows of a group, of at most {MOST_ROWS_OF_PAIRS:,} rows, found a group of "
            f"{lengths.max():,}: set loss = 'listwise', or a smaller group"
        )
    if not is_one_class.any():
        return group, None
    rows = lengths[is_one_class].sum() / len(table)
    return group, (
        f"{is_one_class.sum():,} of {len(starts):,} groups ({is_one_class.mean():.1%}), with {rows:.1%} of the rows, "
        f"have one label only, of which {settings.loss} learns no order"
    )


def _check_grades(y: np.ndarray, settings: TrainingSettings, objective: Objective) -> None:
    """Check that a regression label has grades, and the loss no probabilities."""
    loss = f"training.loss = {settings.loss!r}"
    if settings.gives_probabilities:
        raise ConfigError(
            f"{loss} ranks and keeps probabilities, which a regression label has not: set 'listwise', or the label's "
            "positive_above"
        )
    if objective.prediction_range is not None:
        raise ConfigError(
            f"{loss} gives scores without a unit, which the label's range would cut off: remove the range"
        )
    are_grades = is_grade(y)
    if not are_grades.all():
        raise DataError(
            f"{loss} reads a regression label as grades, whole numbers from 0 to {LARGEST_GRADE}, found "
            f"{y[~are_grades][0]:g}: convert them, or set the label's positive_above"
        )
