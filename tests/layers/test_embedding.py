import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwise.layers import FieldEmbedding, FirstOrder
from fieldwise.layout import Batch, FieldLayout, Layout
from fieldwise.ops import use_ops

NO_IDS, NO_VALUES = torch.empty(0, dtype=torch.int64), torch.empty(0)


def _field(name, kind, offset, rows, pooling="mean"):
    return FieldLayout(name=name, kind=kind, role="context", offset=offset, rows=rows, pooling=pooling)


# Bags stand first and between, so that the order has to be restored.
MIXED = Layout(
    (
        _field("tags", "bag", 0, 3, "max"),
        _field("city", "id", 3, 2),
        _field("genres", "bag", 5, 3, "mean"),
        _field("price", "value", 8, 1),
        _field("words", "bag", 9, 2, "sum"),
    )
)
TABLE = torch.arange(22.0).view(11, 2)
BATCH = Batch(
    ids=torch.tensor([[3, 8], [4, 8]]),
    values=torch.tensor([[0.5], [-2.0]]),
    bag_ids=torch.tensor([0, 2, 5, 7, 9, 10, 6]),
    bag_segments=torch.tensor([0, 0, 1, 1, 2, 2, 4]),
    bag_weights=torch.tensor([1.0, 1.0, 0.5, 0.5, 1.0, 1.0, 1.0]),
)


def _with(layout, table, dim=2):
    embedding = FieldEmbedding(layout, dim)
    embedding.weight.data.copy_(table)
    return embedding


def test_a_mixed_row_by_hand():
    x = _with(MIXED, TABLE)(BATCH)
    assert x[0].tolist() == [[4.0, 5.0], [6.0, 7.0], [12.0, 13.0], [8.0, 8.5], [38.0, 40.0]]
    # The second row's tags and words are empty, and its price is negative.
    assert x[1].tolist() == [[0.0, 0.0], [8.0, 9.0], [12.0, 13.0], [-32.0, -34.0], [0.0, 0.0]]


def test_max_of_negative_numbers_stays_negative():
    x = _with(MIXED, -TABLE - 1)(BATCH)
    assert x[0, 0].tolist() == [-1.0, -2.0]
    assert x[1, 0].tolist() == [0.0, 0.0]


def test_first_order_sums_weights_times_values():
    first = FirstOrder(MIXED)
    first.embedding.weight.data.copy_(torch.arange(11.0).view(11, 1))
    first.bias.data.fill_(100)
    assert first(BATCH).tolist() == [100 + 2 + 3 + 6 + 4 + 19, 100 + 0 + 4 + 6 - 16 + 0]
    assert FirstOrder(MIXED, bias=False).bias is None


def test_gradients_by_finite_differences():
    embedding = FieldEmbedding(MIXED, 2).double()

    def forward(weight: Tensor) -> Tensor:
        return torch.func.functional_call(embedding, {"weight": weight}, (BATCH,))

    torch.manual_seed(0)
    assert torch.autograd.gradcheck(forward, torch.randn(11, 2, dtype=torch.float64, requires_grad=True))


def test_a_missing_number_contributes_nothing():
    zero = BATCH._replace(values=torch.zeros(2, 1))
    assert _with(MIXED, TABLE)(zero)[:, 3].abs().sum() == 0


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
    batch = Batch(torch.tensor([[0, 3], [2, 6]], dtype=dtype), torch.empty(2, 0), NO_IDS, NO_IDS, NO_VALUES)
    with torch.no_grad(), use_ops("plain"), _Recorder() as recorder:
        x = embedding(batch)
    assert recorder.seen == ["embedding.default"]
    assert torch.equal(x, embedding.weight[batch.ids.long()])


def test_bags_alone_and_no_row():
    layout = Layout((_field("a", "bag", 0, 2, "sum"), _field("b", "bag", 2, 2, "mean")))
    embedding = _with(layout, TABLE[:4])
    ids = torch.empty(2, 0, dtype=torch.int64)
    batch = Batch(ids, torch.empty(2, 0), torch.tensor([0, 1, 3]), torch.tensor([0, 0, 3]), torch.ones(3))
    assert embedding(batch).tolist() == [[[2.0, 4.0], [0.0, 0.0]], [[0.0, 0.0], [6.0, 7.0]]]
    empty = Batch(ids[:0], torch.empty(0, 0), NO_IDS, NO_IDS, NO_VALUES)
    assert embedding(empty).shape == (0, 2, 2)


def test_values_follow_the_tables_type():
    assert FieldEmbedding(MIXED, 2).double()(BATCH).dtype == torch.float64


def test_the_table_starts_with_the_asked_deviation():
    torch.manual_seed(0)
    weight = FieldEmbedding(Layout.of_sizes([5000]), 10, std=1e-4).weight.detach()
    assert float(weight.std()) == pytest.approx(1e-4, rel=0.02)
    assert float(weight.mean()) == pytest.approx(0, abs=1e-5)
