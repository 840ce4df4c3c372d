"""A model must have exactly as many parameters as others published for the same settings and vocabulary."""

import torch
from parity.published import PUBLISHED

from fieldwise.layout import Layout
from fieldwise.models import MODELS, ModelSettings, parameter_count


def counted(settings: ModelSettings, sizes: list[int]) -> int:
    """Numbers of a network of these sizes, without making them."""
    with torch.device("meta"):
        return parameter_count(settings.build(Layout.of_sizes(sizes)))


def test_published_counts_are_met_exactly(subtests):
    for model in sorted({model for model, _ in PUBLISHED}):
        with subtests.test(model=model):
            for data in (data for name, data in PUBLISHED if name == model):
                published = PUBLISHED[model, data]
                assert type(published.settings) is MODELS[model]
                assert counted(published.settings, published.sizes) == published.count - published.redundant, data
