"""What the logit loses without a field or a pair of fields: these take background rows' values instead.

Letters: N rows, F fields, P = F(F-1)/2 pairs, K background rows.
"""

import numpy as np

from fieldwise.explain.mixing import Mixer

__all__ = ["occlusion", "pair_interactions"]


def occlusion(mixer: Mixer, logit: np.ndarray, others: np.ndarray) -> np.ndarray:
    """The logit less its mean where one field has other rows' values, field by field [N, F].

    Args:
        mixer: of the N rows.
        logit: [N], of the rows as they are.
        others: [N, K], each row's background rows.
    """
    rows, fields = np.arange(len(logit)), np.eye(mixer.num_fields, dtype=bool)
    without = np.stack([_without(mixer, rows, others, taken).mean(1) for taken in fields], axis=1)
    lost: np.ndarray = logit[:, None] - without
    return lost


def pair_interactions(mixer: Mixer, logit: np.ndarray, others: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """What two fields give together beyond what each gives alone [M, K, P], in the order of `pair_indices`.

    `f(x) - f(x without i) - f(x without j) + f(x without both)` for every background row: what belongs to one of the
    fields alone, such as first-order terms, cancels.

    Args:
        mixer: of the N rows.
        logit: [N], of the rows as they are.
        others: [M, K], background rows of those that are asked for.
        rows: [M], which they are.
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
    """The logits [M, K] with each row's background rows, whose values the taken fields have."""
    draws = others.shape[1]
    found = mixer.score(np.repeat(rows, draws), others.ravel(), np.broadcast_to(taken, (others.size, len(taken))))
    return found.reshape(-1, draws)
