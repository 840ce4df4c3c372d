import itertools

import pytest
import torch
from parity import lab

from fieldwise.layers import FieldEmbedding, SubsetEmbedding
from fieldwise.layout import Layout

CHOICES = [
    (name, names)
    for name, layout in lab.LAYOUTS.items()
    for size in (1, 2, layout.num_fields)
    for names in itertools.islice(itertools.permutations([f.name for f in layout.fields], size), 0, 12, 6)
]


def test_it_is_the_shared_table_cut_to_the_chosen_fields(subtests):
    """With the same rows, the result equals that of a table of all fields at the chosen positions."""
    for layout, names in CHOICES:
        with subtests.test(layout=layout, names=names):
            layout = lab.LAYOUTS[layout]
            places = [[f.name for f in layout.fields].index(name) for name in names]
            whole, own = FieldEmbedding(layout, 3).double(), SubsetEmbedding(layout, names, 3).double()
            spans = dict.fromkeys((layout.fields[i].offset, layout.fields[i].rows) for i in places)
            with torch.no_grad():
                own.weight.copy_(torch.cat([whole.weight[start : start + rows] for start, rows in spans]))
            for rows in (0, 1, 6):
                batch = lab.random_batch(layout, rows)
                torch.testing.assert_close(own(batch), whole(batch)[:, places])


def test_its_rows_are_those_of_the_chosen_fields_alone():
    layout = Layout.of_sizes([3, 40, 5])
    assert SubsetEmbedding(layout, ("field_2", "field_0"), 2).weight.shape == (8, 2)


def test_a_history_brings_the_rows_that_it_shares_once():
    layout = lab.LAYOUTS["history"]  # f2 is a history of values of f1, which has 6 rows
    assert SubsetEmbedding(layout, ("f2",), 2).weight.shape == (6, 2)
    assert SubsetEmbedding(layout, ("f1", "f2"), 2).weight.shape == (6, 2)


def test_only_chosen_fields_train_it():
    """Values of a bag that is not chosen are looked up, but contribute no gradient."""
    layout = lab.LAYOUTS["bags"]
    own, batch = SubsetEmbedding(layout, ("f1",), 2).double(), lab.random_batch(layout, 20)
    own(batch).sum().backward()
    mine = batch.bag_segments % 3 == 1
    assert (~mine).any()
    counts = torch.zeros(4, dtype=torch.float64).index_add(0, batch.bag_ids[mine] - 5, batch.bag_weights[mine])
    torch.testing.assert_close(own.weight.grad[:, 0], counts)


def test_it_starts_from_the_given_deviation():
    torch.manual_seed(0)
    weight = SubsetEmbedding(Layout.of_sizes([3000]), ("field_0",), 10, std=0.2).weight.detach()
    assert float(weight.std()) == pytest.approx(0.2, rel=0.02)
