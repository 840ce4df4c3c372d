"""Embeddings: one gather where there are categories alone, and a table of chosen fields; parity has their sums."""

import itertools

import pytest
import torch
from parity import lab
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwise import Batch, Layout
from fieldwise.layers import FieldEmbedding, FirstOrder, SubsetEmbedding
from fieldwise.ops import use_ops


class _Recorder(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_categories_alone_are_one_gather(dtype):
    embedding = FieldEmbedding(Layout.of_sizes([3, 4]), 2)
    batch = Batch.of_ids(torch.tensor([[0, 3], [2, 6]], dtype=dtype))
    with torch.no_grad(), use_ops("plain"), _Recorder() as recorder:
        x = embedding(batch)
    if dtype == torch.int64:  # made by hand: the ranges of its ids are checked before
        assert recorder.seen.count("embedding.default") == 1
        assert recorder.seen[-1] == "embedding.default"
    else:
        assert recorder.seen == ["embedding.default"]
    assert torch.equal(x, embedding.weight[batch.ids.long()])


def test_tables_start_with_the_asked_deviation():
    torch.manual_seed(0)
    layout = Layout.of_sizes([5000])
    shared, own = (
        FieldEmbedding(layout, 10, std=1e-4),
        SubsetEmbedding(layout, ("field_0",), 10, std=0.2),
    )
    for table, std in ((shared, 1e-4), (own, 0.2)):
        weight = table.weight.detach()
        assert float(weight.std()) == pytest.approx(std, rel=0.02)
        assert float(weight.mean()) == pytest.approx(0, abs=0.1 * std)


CHOICES = [
    (name, names)
    for name, layout in lab.LAYOUTS.items()
    for size in (1, 2, layout.num_fields)
    for names in itertools.islice(
        itertools.permutations([f.name for f in layout.fields], size), 0, 12, 6
    )
]


def test_it_is_the_shared_table_cut_to_the_chosen_fields(subtests):
    """With the same rows, the result equals that of a table of all fields at the chosen positions."""
    for layout, names in CHOICES:
        with subtests.test(layout=layout, names=names):
            layout = lab.LAYOUTS[layout]
            places = [[f.name for f in layout.fields].index(name) for name in names]
            whole, own = (
                FieldEmbedding(layout, 3).double(),
                SubsetEmbedding(layout, names, 3).double(),
            )
            spans = dict.fromkeys((layout.fields[i].offset, layout.fields[i].rows) for i in places)
            with torch.no_grad():
                own.weight.copy_(
                    torch.cat([whole.weight[start : start + rows] for start, rows in spans])
                )
            for rows in (0, 1, 6):
                batch = lab.random_batch(layout, rows)
                torch.testing.assert_close(own(batch), whole(batch)[:, places])


def test_its_rows_are_those_of_the_chosen_fields_and_of_a_history_once():
    assert SubsetEmbedding(Layout.of_sizes([3, 40, 5]), ("field_2", "field_0"), 2).weight.shape == (
        8,
        2,
    )
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
    counts = torch.zeros(4, dtype=torch.float64).index_add(
        0, batch.bag_ids[mine] - 5, batch.bag_weights[mine]
    )
    torch.testing.assert_close(own.weight.grad[:, 0], counts)


def test_on_meta_no_values_are_drawn_which_would_load_pytorchs_compiler(monkeypatch):
    drawn = []
    monkeypatch.setattr(torch.nn.init, "normal_", lambda *_, **__: drawn.append(1))
    with torch.device("meta"):
        assert FieldEmbedding(lab.LAYOUTS["mixed"], 4).weight.is_meta
    assert drawn == []


def test_first_order_weights_start_at_zero():
    assert not any(p.any() for p in FirstOrder(lab.LAYOUTS["mixed"]).parameters())
