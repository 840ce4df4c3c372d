"""A candidate stage for large catalogues: item heads in clusters, of which a request looks into the nearest.

An item is a candidate if one of its heads lies in a cluster near to one of the user's heads. Candidates are then scored
exactly, so that what is lost is what lies in no such cluster: `fieldwise evaluate-cascade --nprobe` counts it.

Letters: N items, K item heads, P size of a head, U users, H user heads (of all levels), C clusters.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fieldwise.errors import ConfigError
from fieldwise.ops.stored_items import StoredItems

__all__ = ["HeadClusters"]

PER_CLUSTER = 64  # heads that the centres are found from
MOST = 4096  # clusters
AT_ONCE = 65_536  # heads whose cluster is looked for


@dataclass(frozen=True, eq=False)
class HeadClusters:
    """Which items have a head in which cluster.

    Args:
        centres: float32 [C, P].
        items: int32, the items of cluster c at `starts[c] : starts[c + 1]`, rising.
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
            clusters: C; the root of ten times N where left out, which is 1,000 for 100,000 items, at most 4,096.
            seed: of the sample and the k-means.

        Errors:
            ConfigError: no items, or a number of clusters out of range.
        """
        count, heads, size = stored.heads.shape
        wanted = min(MOST, count, max(1, round((10 * count) ** 0.5))) if clusters is None else clusters
        if not 1 <= wanted <= count * heads:
            raise ConfigError(f"clusters must be from 1 to the {count * heads:,} heads that there are, found {wanted}")
        from sklearn.cluster import MiniBatchKMeans  # seconds to load, which a cascade without clusters is spared

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
        """The items with a head in one of the `nprobe` clusters nearest to each of a user's heads, rising, int64.

        Near is what has a large inner product, as MaxSim counts.

        Args:
            user_HP: a user's heads, [H, P].
            nprobe: clusters for each head.
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
