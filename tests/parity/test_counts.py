"""A model must have exactly as many parameters as others published for the same settings and vocabulary."""

import pytest
import torch
from parity.published import PUBLISHED

from fieldwise import AFM, NFM, DeepCrossing, Layout, WideDeep
from fieldwise.models import NETWORKS, ModelSettings, parameter_count


def counted(settings: ModelSettings, sizes: list[int]) -> int:
    """Numbers of a network of these sizes, without making them."""
    with torch.device("meta"):
        return parameter_count(settings.build(Layout.of_sizes(sizes)))


def test_published_counts_are_met_exactly(subtests):
    for model in sorted({model for model, _ in PUBLISHED}):
        with subtests.test(model=model):
            for data in (data for name, data in PUBLISHED if name == model):
                published = PUBLISHED[model, data]
                assert type(published.settings) is NETWORKS[model]
                assert (
                    counted(published.settings, published.sizes)
                    == published.count - published.redundant
                ), data


FRAPPE, MOVIELENS = [5_382, *[0] * 9], [90_445, 0, 0]


@pytest.mark.parametrize(
    ("settings", "sizes", "millions"),
    [
        # the AFM paper's Table 2; sizes of its command
        (AFM(embedding_dim=256, attention_dim=256), FRAPPE, 1.45),
        # Table 3 of the NFM paper
        (NFM(embedding_dim=128, hidden=(128,)), FRAPPE, 0.71),
        (NFM(embedding_dim=256, hidden=(256,)), MOVIELENS, 23.31),
        (WideDeep(embedding_dim=128), FRAPPE, 2.66),
        (WideDeep(embedding_dim=256), MOVIELENS, 24.69),
        (DeepCrossing(embedding_dim=128), FRAPPE, 4.47),
        (DeepCrossing(embedding_dim=256), MOVIELENS, 25.42),
    ],
)
def test_sizes_that_papers_round(settings, sizes, millions):
    assert round(counted(settings, sizes) / 1e6, 2) == millions
