"""Occlusion: changes of the logit when a field or a pair of fields takes background rows' values.

Letters: N rows, F fields, P = F(F-1)/2 pairs, K background rows.
"""

import numpy as np

from fieldwise.explain.mixing import Mixer

__all__ = ["occlusion", "pair_interactions"]


def occlusion(mixer: Mixer, logit: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The logit minus its mean with other rows' values in one field, for every field [N, F].

    Args:
        mixer: mixer of the N rows.
        logit: logits of the rows, [N].
        others: each row's background rows, [N, K].
    """
    rows, fields = np.arange(len(logit)), np.eye(mixer.num_fields, dtype=bool)
    without = np.stack([_without(mixer, rows, others, taken).mean(1) for taken in fields], axis=1)
    lost: np.ndarray = logit[:, None] - without
    return lost


def pair_interactions(mixer: Mixer, logit: np.ndarray, others: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Interaction effects of all pairs of fields [M, K, P], in the order of `pair_indices`.

    `f(x) - f(x without i) - f(x without j) + f(x without both)` for every background row: effects of single fields,
    such as first-order terms, cancel.

    Args:
        mixer: mixer of the N rows.
        logit: logits of the rows, [N].
        others: background rows of the chosen rows, [M, K].
        rows: numbers of the chosen rows, [M].
    """
    fields = np.eye(mixer.num_fields, dtype=bool)
    alone = [_without(mixer, rows, others, taken) for taken in fields]
    left, right = np.triu_indices(mixer.num_fields, 1)
    pairs = [
        logit[rows, None] - alone[i] - alone[j] + _without(mixer, rows, others, fields[i] | fields[j])
        for i, j in zip(left, right, strict=True)
    ]
    return np.stack(pairs, axis=2) if pairs else np.zeros((*others.shape, 0))


def _without(mixer: Mixer, rows: np.ndarray, others: np.ndarray, taken: np.ndarray) -> np.ndarray:
    """The logits [M, K] of each row with the taken fields from its background rows."""
    draws = others.shape[1]
    found = mixer.score(np.repeat(rows, draws), others.ravel(), np.broadcast_to(taken, (others.size, len(taken))))
    return found.reshape(-1, draws)
