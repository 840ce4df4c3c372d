"""A candidate stage for large catalogues: clusters of item heads, of which a request searches the nearest.

An item is a candidate if one of its heads is in a cluster near one of the user's heads. Candidates are then scored
exactly, so only items outside these clusters are lost: `fieldwise evaluate-cascade --nprobe` measures the loss.

Letters: N items, K item heads, P size of a head, U users, H user heads (of all levels), C clusters.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fieldwise.errors import ConfigError
from fieldwise.ops.stored_items import StoredItems

__all__ = ["HeadClusters"]

PER_CLUSTER = 64  # sampled heads per cluster for k-means
MOST = 4096  # maximum number of clusters
AT_ONCE = 65_536  # heads assigned to clusters at a time


@dataclass(frozen=True, eq=False)
class HeadClusters:
    """The items with a head in each cluster.

    Args:
        centres: float32 [C, P].
        items: int32, the items of cluster c at `starts[c] : starts[c + 1]`, ascending.
        starts: [C + 1].
        size: N.
    """

    centres: Tensor
    items: np.ndarray
    starts: np.ndarray
    size: int

    @classmethod
    def of(cls, stored: StoredItems, *, clusters: int | None = None, seed: int = 0) -> "HeadClusters":
        """Cluster the heads of all items by k-means, on a sample of them.

        Args:
            stored: the items.
            clusters: number of clusters C; default: the square root of 10 N (1,000 for 100,000 items), at most 4,096.
            seed: seed of the sample and of k-means.

        Errors:
            ConfigError: no items, or a number of clusters out of range.
        """
        count, heads, size = stored.heads.shape
        wanted = min(MOST, count, max(1, round((10 * count) ** 0.5))) if clusters is None else clusters
        if not 1 <= wanted <= count * heads:
            raise ConfigError(f"clusters must be from 1 to the number of heads ({count * heads:,}), found {wanted}")
        from sklearn.cluster import MiniBatchKMeans  # slow to import, and only needed with clusters

        rng = np.random.default_rng(seed)
        chosen = rng.choice(count, min(count, -(-wanted * PER_CLUSTER // heads)), replace=False)
        sample = _floats(stored, np.sort(chosen)).reshape(-1, size)
        means = MiniBatchKMeans(wanted, random_state=seed, n_init=1, batch_size=4096, init="random").fit(sample)
        centres = torch.from_numpy(means.cluster_centers_.astype(np.float32))
        step = max(1, AT_ONCE // heads)
        found = []
        for start in range(0, count, step):
            rows = np.arange(start, min(start + step, count))
            nearest = _nearest(torch.from_numpy(_floats(stored, rows).reshape(-1, size)), centres).numpy()
            found.append(nearest.astype(np.int64) * count + np.repeat(rows, heads))
        pairs = np.unique(np.concatenate(found))
        starts = np.searchsorted(pairs, np.arange(wanted + 1) * count)
        return cls(centres, (pairs % count).astype(np.int32), starts, count)

    def candidates(self, user_HP: Tensor, nprobe: int) -> np.ndarray:
        """The items with a head in one of the `nprobe` nearest clusters of each user head, ascending, int64.

        The nearest clusters have the largest inner products, as in MaxSim.

        Args:
            user_HP: a user's heads, [H, P].
            nprobe: number of clusters to search per head.
        """
        nearness_HC = user_HP @ self.centres.t()
        nearest = torch.topk(nearness_HC, min(nprobe, len(self.centres)), dim=1).indices.numpy()
        among = np.zeros(self.size, bool)
        for cluster in np.unique(nearest).tolist():
            among[self.items[self.starts[cluster] : self.starts[cluster + 1]]] = True
        return np.flatnonzero(among)


def _floats(stored: StoredItems, rows: np.ndarray) -> np.ndarray:
    at = torch.from_numpy(rows)
    heads = stored.heads[at].to(torch.float32)
    found: np.ndarray = (heads if stored.scale is None else heads * stored.scale[at].unsqueeze(2)).numpy()
    return found


def _nearest(x_MP: Tensor, centres_CP: Tensor) -> Tensor:
    return (centres_CP.square().sum(1) - 2 * x_MP @ centres_CP.t()).argmin(1)
