"""Parameter counts that others published: the same model on the same vocabulary must have exactly as many numbers."""

from typing import NamedTuple

import pytest
import torch

from fieldwise.layout import Layout
from fieldwise.models import AFM, MODELS, AutoInt, AutoIntPlus, ModelSettings, parameter_count


class Published(NamedTuple):
    """One published count.

    Args:
        settings: the model of the run.
        sizes: rows of each field in the embedding table, padding and unknown included. Where only the sum is
            published, it stands at the first field.
        count: numbers that training changes.
        source: the run that printed it.
    """

    settings: ModelSettings
    sizes: list[int]
    count: int
    source: str


# Fields of the public sets; a numeric field is one row, as it has one vector.
FRAPPE = [5_389, *[0] * 9]
MOVIELENS_TAG = [90_239, *[0] * 2]
CRITEO = [2_086_316, *[0] * 38]

BARS = "BARS (github.com/reczoo/BARS), ranking/ctr/"
EMBEDDING = {"embedding_dim": 10}
FUXICTR = EMBEDDING | {"variant": "fuxictr", "heads": 4, "attention_dim": 128}
NORMED = FUXICTR | {"norm": "before_relu", "scale": True}
DEEP = {"hidden": (400, 400, 400), "batch_norm": True}

PUBLISHED: dict[tuple[str, str], Published] = {
    ("afm", "frappe"): Published(
        AFM(**EMBEDDING, variant="fuxictr", attention_dim=128), FRAPPE, 60_826, BARS + "AFM/AFM_frappe_x1"
    ),
    ("afm", "movielens-tag"): Published(
        AFM(**EMBEDDING, variant="fuxictr", attention_dim=16),
        MOVIELENS_TAG,
        992_832,
        BARS + "AFM/AFM_movielenslatest_x1",
    ),
    ("afm", "criteo"): Published(
        AFM(**EMBEDDING, variant="fuxictr", attention_dim=32), CRITEO, 22_949_871, BARS + "AFM/AFM_criteo_x1"
    ),
    ("autoint", "frappe"): Published(AutoInt(layers=6, **FUXICTR), FRAPPE, 306_051, BARS + "AutoInt/AutoInt_frappe_x1"),
    ("autoint", "movielens-tag"): Published(
        AutoInt(layers=2, wide=True, **NORMED), MOVIELENS_TAG, 1_047_798, BARS + "AutoInt/AutoInt_movielenslatest_x1"
    ),
    ("autoint", "criteo"): Published(
        AutoInt(layers=3, wide=True, **(NORMED | {"attention_dim": 256})),
        CRITEO,
        23_364_453,
        BARS + "AutoInt/AutoInt_criteo_x1",
    ),
    ("autoint+", "frappe"): Published(
        AutoIntPlus(layers=5, **NORMED, **DEEP), FRAPPE, 622_180, BARS + "AutoInt/AutoInt+_frappe_x1"
    ),
    ("autoint+", "movielens-tag"): Published(
        AutoIntPlus(layers=2, wide=True, **NORMED, **DEEP),
        MOVIELENS_TAG,
        1_383_799,
        BARS + "AutoInt/AutoInt+_movielenslatest_x1",
    ),
    ("autoint+", "criteo"): Published(
        AutoIntPlus(layers=3, wide=True, norm="before_relu", **(FUXICTR | {"heads": 2, "attention_dim": 256}), **DEEP),
        CRITEO,
        23_844_454,
        BARS + "AutoInt/AutoInt+_criteo_x1",
    ),
}


def counted(settings: ModelSettings, sizes: list[int]) -> int:
    """Numbers of a network of these sizes, without making them."""
    with torch.device("meta"):
        return parameter_count(settings.build(Layout.of_sizes(sizes)))


@pytest.mark.parametrize(("model", "data"), list(PUBLISHED))
def test_a_published_count_is_met_exactly(model, data):
    published = PUBLISHED[model, data]
    assert type(published.settings) is MODELS[model]
    assert counted(published.settings, published.sizes) == published.count
