"""MaxSim of rows and of stored items, by both backends."""

import itertools

import numpy as np
import pytest
import torch

from fieldwise import Batch, ConfigError, DataError, IntTower, Layout
from fieldwise.ops import max_sim, use_ops
from fieldwise.ops.native import NATIVE
from fieldwise.ops.stored_items import StoredItems

BACKENDS = ("plain", "native") if NATIVE.ready else ("plain",)
needs_native = pytest.mark.skipif(not NATIVE.ready, reason="no native library")
# B, H, K, P: single numbers, tails of lanes, of tiles and of words of item heads, IntTower's sizes
SIZES = [
    (1, 1, 1, 1),
    (3, 12, 4, 64),
    (2, 7, 5, 3),
    (3, 96, 32, 64),
    (2, 33, 70, 9),
    (2, 50, 129, 8),
    (2, 17, 33, 33),
]


def pair(b, h, k, p, *, dtype=torch.float64, seed=0, whole=False):
    """Users and items that want gradients; whole numbers of -1 to 1 give many equal maxima."""
    rng = np.random.default_rng(seed)
    shapes = (b, h, p), (b, k, p)
    drawn = [rng.integers(-1, 2, size=s) if whole else rng.normal(size=s) for s in shapes]
    return [torch.tensor(x, dtype=dtype).requires_grad_() for x in drawn]


def both(user, item, upstream):
    """Score and gradients by the native backend, then by the plain one."""
    results = []
    for backend in ("native", "plain"):
        with use_ops(backend):
            score = max_sim(user, item)
            results.append((score, *torch.autograd.grad(score, (user, item), upstream)))
    return zip(*results, strict=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_is_the_sum_over_user_heads_of_the_best_item_head(subtests, backend):
    for user, item in [(1, 1), (3, 2), (2, 5)]:
        with subtests.test(user=user, item=item):
            rng = np.random.default_rng(0)
            u, v = rng.normal(size=(4, user, 3)), rng.normal(size=(4, item, 3))
            reference = [
                sum(max(u[b, i] @ v[b, j] for j in range(item)) for i in range(user))
                for b in range(4)
            ]
            with use_ops(backend):
                np.testing.assert_allclose(
                    max_sim(torch.tensor(u), torch.tensor(v)), reference, atol=1e-12
                )


@pytest.mark.parametrize("backend", BACKENDS)
def test_empty_batches(backend):
    u, v = pair(2, 3, 2, 4)
    with use_ops(backend):
        assert max_sim(u[:0], v[:0]).shape == (0,)
        empty = u[:0].detach().requires_grad_()
        assert torch.autograd.grad(max_sim(empty, v[:0]).sum(), empty)[0].shape == (0, 3, 4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_equal_maxima_share_the_gradient(backend):
    u = torch.tensor([[[1.0, 0.0]]], requires_grad=True)
    v = torch.tensor([[[2.0, 0.0], [1.0, 1.0], [2.0, 6.0]]], requires_grad=True)
    with use_ops(backend):
        gu, gv = torch.autograd.grad(3 * max_sim(u, v).sum(), (u, v))
    assert gu.tolist() == [[[6.0, 9.0]]]
    assert gv.tolist() == [[[1.5, 0.0], [0.0, 0.0], [1.5, 0.0]]]


@needs_native
def test_native_equals_plain(subtests):
    for sizes in SIZES:
        for dtype in [torch.float32, torch.float64]:
            for whole in [False, True]:
                with subtests.test(sizes=sizes, dtype=dtype, whole=whole):
                    user, item = pair(*sizes, dtype=dtype, whole=whole)
                    atol = 2e-5 if dtype == torch.float32 else 1e-12
                    for native, plain in both(
                        user, item, torch.linspace(-1, 2, sizes[0], dtype=dtype)
                    ):
                        np.testing.assert_allclose(
                            native.detach(), plain.detach(), rtol=1e-5, atol=atol
                        )


@needs_native
def test_nan_and_infinity_as_in_pytorch():
    user, item = pair(4, 9, 37, 5)
    with torch.no_grad():
        user[0, 3, 1], item[1, 36, 4], user[2, 0, 0], item[2] = (
            torch.nan,
            torch.nan,
            torch.inf,
            item[2].abs(),
        )
        item[3] = -torch.inf
        user[3] = user[3].abs()
    for (native, plain), name in zip(
        both(user, item, torch.ones(4, dtype=torch.float64)), "sui", strict=True
    ):
        rows = slice(0, 4 if name == "s" else 2)  # plain gradients at infinity hold 0 * infinity
        np.testing.assert_allclose(native[rows].detach(), plain[rows].detach(), atol=1e-12)
    assert native[:2].isnan().all()


STORAGES = ("float32", "bfloat16", "int8")
STORED_SIZES = [
    (1, 1, 1, 1),
    (3, 5, 2, 3),
    (9, 12, 4, 64),
    (301, 96, 32, 32),
    (7, 33, 7, 9),
    (5, 25, 6, 4),
]  # N, H, K, P
each_storage = pytest.mark.parametrize("storage", STORAGES)


@pytest.fixture(params=BACKENDS)
def backend(request):
    with use_ops(request.param):
        yield request.param


each_backend = pytest.mark.usefixtures("backend")


def heads(*shape, seed=0):
    return torch.tensor(np.random.default_rng(seed).normal(size=shape), dtype=torch.float32)


def integers_by_hand(x, levels):
    """Rounded halves to even, as NumPy and PyTorch both do; a scale a head."""
    scale = np.abs(x).max(-1) / np.float32(levels)
    return np.round(x / scale[..., None]).astype(np.int64), scale.astype(np.float64)


def scores_by_hand(user_HP, item_NKP, storage):
    if storage == "int8":
        q_item, item_scale = integers_by_hand(item_NKP.numpy(), 127)
        q_user, user_scale = integers_by_hand(user_HP.numpy(), 63)
        product = np.einsum("hp,nkp->nhk", q_user, q_item) * item_scale[:, None]
        return (product.max(2) * user_scale).sum(1)
    kept = item_NKP.to(getattr(torch, storage)).double().numpy()
    return np.einsum("hp,nkp->nhk", user_HP.double().numpy(), kept).max(2).sum(1)


@each_backend
@each_storage
def test_scores_are_those_of_the_stored_numbers(subtests, storage):
    for n, h, k, p in STORED_SIZES:
        with subtests.test(n=n, h=h, k=k, p=p):
            user, item = heads(h, p), heads(n, k, p, seed=1)
            result = StoredItems.of(item, storage).scores(user)
            np.testing.assert_allclose(
                result, scores_by_hand(user, item, storage), rtol=2e-6, atol=2e-5
            )


@each_backend
@each_storage
def test_several_users_and_chosen_rows(storage):
    users, item = heads(5, 7, 6), heads(11, 3, 6, seed=1)
    stored, close = StoredItems.of(item, storage), {"rtol": 2e-6, "atol": 1e-5}
    rows = torch.arange(600) * 7 % 11  # more than two blocks of the plain backend
    reference = np.stack([scores_by_hand(u, item, storage) for u in users])
    np.testing.assert_allclose(stored.scores(users), reference, **close)
    np.testing.assert_allclose(stored.scores(users, rows), reference[:, rows], **close)
    np.testing.assert_allclose(stored.scores(users[1], rows.int()), reference[1, rows], **close)
    assert stored.scores(users, rows[:0]).shape == (5, 0)
    assert stored.scores(users[:0]).shape == (0, 11)
    assert stored[:0].scores(users[0]).shape == (0,)


@needs_native
def test_both_backends_have_the_same_integers_at_their_extremes():
    # All signs, and every number the largest that int8 has: sums of two products reach what 16 bits
    # hold.
    user, item = torch.ones(8, 32), torch.ones(4, 4, 32)
    user[1::2] = -1
    item[1], item[2, :, ::2], item[3, 1:] = -1, -1, -1
    stored = StoredItems.of(item, "int8")
    reference = scores_by_hand(user, item, "int8")
    for backend in BACKENDS:
        with use_ops(backend):
            np.testing.assert_allclose(stored.scores(user), reference, rtol=1e-6)
    # four heads of 32, four of -32: nothing saturated on one side
    assert reference[0] == pytest.approx(0, abs=1e-9)
    assert reference[3] == pytest.approx(8 * 32, rel=1e-6)


@needs_native
def test_threads_change_no_bit(same_on_all_threads):
    user, item = heads(96, 32), heads(333, 32, 32, seed=1)
    stored = [StoredItems.of(item, storage) for storage in STORAGES]
    same_on_all_threads(lambda: [items.scores(user) for items in stored])


@each_backend
@each_storage
def test_nan_of_a_user_stays_with_that_user_and_zeros_score_zero(storage):
    users, item = heads(3, 5, 4), heads(6, 2, 4, seed=1)
    reference = StoredItems.of(item, storage).scores(users)
    users[1, 3, 2] = float("nan")
    result = StoredItems.of(item, storage).scores(users)
    assert result[1].isnan().all()
    np.testing.assert_allclose(result[[0, 2]], reference[[0, 2]], rtol=1e-5, atol=1e-5)
    assert StoredItems.of(torch.zeros(2, 3, 4), storage).scores(heads(5, 4)).tolist() == [0, 0]
    assert StoredItems.of(heads(2, 3, 4), storage).scores(torch.zeros(5, 4)).tolist() == [0, 0]


@each_backend
def test_nan_of_an_items_scale_stays_with_that_item():
    """No item that `of` takes has one, but a damaged file may."""
    user, stored = heads(5, 4), StoredItems.of(heads(6, 9, 4, seed=1), "int8")
    reference = stored.scores(user)
    for head in (0, 5, 8):
        scale = stored.scale.clone()
        scale[2, head] = float("nan")
        result = StoredItems(stored.heads, scale).scores(user)
        assert result.isnan().tolist() == [n == 2 for n in range(6)]
        torch.testing.assert_close(result[3:], reference[3:])


@each_storage
def test_slices_are_views_and_tensors_come_back(storage):
    user, stored = heads(5, 4), StoredItems.of(heads(9, 3, 4, seed=1), storage)
    part = stored[2:5]
    assert part.heads.data_ptr() == stored.heads[2].data_ptr()
    np.testing.assert_allclose(part.scores(user), stored.scores(user)[2:5], rtol=1e-6)
    again = StoredItems.from_tensors(stored.tensors())
    assert (again.heads.data_ptr(), again.storage, len(again)) == (
        stored.heads.data_ptr(),
        storage,
        9,
    )
    assert torch.equal(again.scores(user), stored.scores(user))
    width = {"float32": 4, "bfloat16": 2, "int8": 1}[storage]
    assert stored.num_bytes == 9 * 12 * width + (9 * 3 * 4 if storage == "int8" else 0)


@each_backend
def test_inttower_scores_stored_items_as_it_scores_rows():
    torch.manual_seed(0)
    settings = IntTower(
        variant="authors", embedding_dim=4, hidden=(8, 6), user_heads=3, item_heads=2, head_dim=5
    )
    network = settings.build(Layout.of_sizes([3, 20], ["user", "item"])).eval()
    batch = Batch.of_ids(torch.stack([torch.ones(20), torch.arange(3, 23)], 1).int())
    with torch.no_grad():
        network.bias.fill_(0.7)
        result = network.score_stored(network.user(batch)[:1], StoredItems.of(network.item(batch)))
        np.testing.assert_allclose(result[0], network(batch), rtol=0, atol=1e-6)
    assert result.std() > 0


@each_backend
def test_autocast_does_not_reach_it():
    user, stored = heads(5, 4), StoredItems.of(heads(9, 3, 4, seed=1))
    with torch.autocast("cpu", torch.bfloat16):
        np.testing.assert_allclose(
            stored.scores(user), scores_by_hand(user, stored.heads, "float32"), rtol=1e-5
        )


def test_what_does_not_fit_is_refused(subtests):
    two = StoredItems.of(torch.zeros(2, 3, 4))
    for build, error, message in [
        (lambda: StoredItems(torch.zeros(2, 3)), ConfigError, r"tensor \[N, K, P\]"),
        (lambda: StoredItems(torch.zeros(2, 0, 3)), ConfigError, r"tensor \[N, K, P\]"),
        (lambda: StoredItems(torch.zeros(2, 3, 4, dtype=torch.float16)), ConfigError, "float16"),
        (lambda: StoredItems(torch.zeros(2, 3, 4).transpose(1, 2)), ConfigError, "contiguous"),
        (
            lambda: StoredItems(torch.zeros(2, 3, 4), torch.ones(2)),
            ConfigError,
            "other types have none",
        ),
        (lambda: StoredItems(torch.zeros(2, 3, 4, dtype=torch.int8)), ConfigError, "need scales"),
        (
            lambda: StoredItems(torch.zeros(2, 3, 4, dtype=torch.int8), torch.ones(2)),
            ConfigError,
            r"float32 \[2, 3\]",
        ),
        (lambda: StoredItems.of(torch.zeros(2, 1, 2049), "int8"), ConfigError, "up to 2048"),
        (
            lambda: StoredItems.of(torch.zeros(2, 1, 3), "int4"),
            ConfigError,
            "storage must be one of",
        ),
        (lambda: StoredItems.of(torch.tensor([[[0.0]], [[torch.inf]]])), DataError, "item 1"),
        (
            lambda: StoredItems.from_tensors({"head": torch.zeros(2, 3, 4)}),
            ConfigError,
            "found .'head'.",
        ),
        (lambda: two[::2], ConfigError, "step 1"),
        (lambda: two.scores(torch.zeros(5, 3)), ConfigError, "like the items' heads"),
        (lambda: two.scores(torch.zeros(5, 4), torch.tensor([2])), DataError, "2 to 2"),
        (lambda: two.scores(torch.zeros(5, 4), torch.tensor([-1])), DataError, "-1"),
        (lambda: two.scores(torch.zeros(5, 4), torch.ones(1)), ConfigError, "int"),
    ]:
        with (
            subtests.test(build=build, error=error, message=message),
            pytest.raises(error, match=message),
        ):
            build()


@needs_native
def test_the_operator_is_registered_as_pytorch_wants():
    item = heads(9, 3, 4)
    stored, rows = StoredItems.of(item, "int8"), torch.tensor([3, 1])
    user = torch.randint(-63, 64, (2, 5, 4)).to(torch.int8)
    torch.library.opcheck(
        torch.ops.fieldwise.max_sim_stored, (heads(2, 5, 4), None, item, None, None)
    )
    torch.library.opcheck(
        torch.ops.fieldwise.max_sim_stored,
        (user, torch.ones(2, 5), stored.heads, stored.scale, rows),
    )


@needs_native
def test_a_users_scores_do_not_depend_on_the_others(subtests):
    for h, storage in itertools.product([1, 3, 8, 16, 21], STORAGES):
        with subtests.test(h=h, storage=storage), use_ops("native"):
            users, stored = heads(11, h, 12), StoredItems.of(heads(9, 5, 12, seed=1), storage)
            users[4, 0, 3] = float("nan")
            together = stored.scores(users)
            for number, user in enumerate(users):
                assert np.array_equal(together[number], stored.scores(user), equal_nan=True)
            assert together.isnan().any(1).tolist() == [number == 4 for number in range(11)]
