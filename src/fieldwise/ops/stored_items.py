"""MaxSim, the late interaction of two sets of head vectors: of a batch's rows, and of stored items for serving.

Letters: B batch, H user heads, K item heads, P size of a head, W words of 32 item heads, N items, U
users, R chosen items.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fieldwise.errors import ConfigError, DataError
from fieldwise.ops.native import (
    NATIVE,
    backend_of,
    define,
    float32_under_autocast,
    implement,
    implement_with_gradient,
    type_name,
)

WORD = 32  # item heads per word of bits


def max_sim(user_BHP: Tensor, item_BKP: Tensor) -> Tensor:
    """`sum over user heads of max over item heads of <user head, item head>` (IntTower, CIKM 2022, FE-Block).

    The native backend stores no products, only bits for the item heads that reached the maximum of
    each user head. All backends treat special cases like PyTorch's `amax`: equal maxima share the
    gradient equally, and a user head with NaN among its products returns NaN, with a gradient of
    NaN for itself and all item heads of its row. It has no second derivative, and gives other item
    heads a zero gradient even if they are infinite (plain: NaN, as 0 times infinity).

    Args:
        user_BHP: the users' head vectors.
        item_BKP: the items' head vectors. Under autocast, both are cast to float32.

    Shape:
        user_BHP: [B, H, P] head vectors of size P; item_BKP: [B, K, P], K may differ from H;
            returns [B].

    >>> user, item = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), torch.tensor([[[3.0, 1.0]]])
    >>> max_sim(user, item)
    tensor([5.])
    """
    if backend_of(user_BHP, item_BKP) == "native" and all((*user_BHP.shape[1:], item_BKP.shape[1])):
        return torch.ops.fieldwise.max_sim(user_BHP, item_BKP)[0]
    user_BHP, item_BKP = float32_under_autocast(user_BHP, item_BKP)
    with torch.autocast(user_BHP.device.type, enabled=False):
        return torch.bmm(user_BHP, item_BKP.transpose(1, 2)).amax(2).sum(1)


def _outputs(user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    """Uninitialised scores [B] and wins [B, H, W]."""
    if user.dim() != 3 or item.dim() != 3 or user.shape[::2] != item.shape[::2]:
        found = f"{list(user.shape)} and {list(item.shape)}"
        raise ValueError(
            f"max_sim takes user heads [B, H, P] and item heads [B, K, P], found {found}: B and P must agree"
        )
    words = (item.shape[1] + WORD - 1) // WORD
    return user.new_empty(user.shape[0]), user.new_empty(
        (*user.shape[:2], words), dtype=torch.int32
    )


def _forward(user: Tensor, item: Tensor) -> tuple[Tensor, Tensor]:
    user = user.contiguous()
    item = item.contiguous()
    outputs = _outputs(user, item)
    name = f"fw_maxsim_forward_{type_name(user, item)}"
    NATIVE.call(name, (*user.shape[:2], *item.shape[1:]), user, item, *outputs)
    return outputs


def _backward(*inputs: Tensor) -> tuple[Tensor, Tensor]:
    user, item, wins, grad = (t.contiguous() for t in inputs)
    grads = torch.empty_like(user), torch.empty_like(item)
    name = f"fw_maxsim_backward_{type_name(user, item, grad)}"
    NATIVE.call(name, (*user.shape[:2], *item.shape[1:]), user, item, wins, grad, *grads)
    return grads


implement_with_gradient(
    "max_sim(Tensor user, Tensor item) -> (Tensor, Tensor)",
    _forward,
    _outputs,
    _backward,
    into=(0, 1),
    keeps=(1,),
)


Storage = Literal["float32", "bfloat16", "int8"]
TYPES: dict[Storage, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
ITEM_LEVELS = 127  # levels of int8 item heads, on both sides of 0
# levels of user heads with int8 items: a sum of two products with a byte fits in 16 bits
USER_LEVELS = 63
LARGEST_HEAD = 2048  # for int8: sums of products stay below 2^24, exact as floats
BLOCK = 256  # items per block in the plain backend, so that products stay in cache


@dataclass(frozen=True, eq=False)
class StoredItems:
    """Stored item heads in one of three types, scored with users by MaxSim without being copied.

    `float32` and `bfloat16` are multiplied and added as float32. `int8` has 127 levels on both
    sides of 0 and a scale per item head; user heads are quantised to 63 levels with a scale each at
    every call, and products are added as integers. For the accuracy of each type see
    docs/scoring.md.

    Args:
        heads: [N, K, P], contiguous, for example a memory-mapped file.
        scale: scales of int8 items, float32 [N, K].

    Errors:
        ConfigError: tensors of unsupported types or sizes that do not match.

    >>> items = StoredItems.of(torch.tensor([[[3.0, 1.0]], [[0.0, 2.0]]]), "bfloat16")
    >>> items.scores(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor([5., 4.])
    >>> items.scores(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), rows=torch.tensor([1]))
    tensor([4.])
    """

    heads: Tensor
    scale: Tensor | None = None

    def __post_init__(self) -> None:
        heads = self.heads
        scale = self.scale
        known = ", ".join(TYPES)
        if heads.dim() != 3 or heads.dtype not in TYPES.values() or 0 in heads.shape[1:]:
            found = f"{heads.dtype} {list(heads.shape)}"
            raise ConfigError(
                f"stored item heads must be a tensor [N, K, P] of {known}, found {found}"
            )
        if not heads.is_contiguous():
            raise ConfigError(
                "stored item heads must be contiguous, found strides; use StoredItems.of"
            )
        if (scale is not None) != (heads.dtype == torch.int8):
            raise ConfigError(
                f"int8 item heads need scales [N, K] and other types have none, found {heads.dtype}: add or remove"
            )
        if scale is not None and (scale.shape != heads.shape[:2] or scale.dtype != torch.float32):
            raise ConfigError(
                f"scales must be float32 {list(heads.shape[:2])}, found {scale.dtype} {list(scale.shape)}"
            )
        if scale is not None and heads.shape[2] > LARGEST_HEAD:
            raise ConfigError(
                f"int8 supports heads of size up to {LARGEST_HEAD}, found {heads.shape[2]}: use bfloat16"
            )

    @classmethod
    def of(cls, heads_NKP: Tensor, storage: Storage = "float32") -> "StoredItems":
        """Stored items from item heads [N, K, P] of any floating-point type.

        Errors:
            ConfigError: an unknown storage, or another shape.
            DataError: a head is not finite; the message names the first such item.
        """
        if storage not in get_args(Storage):
            raise ConfigError(f"storage must be one of {', '.join(TYPES)}, found {storage!r}")
        heads = heads_NKP.detach().to(torch.float32).contiguous()
        broken = torch.isfinite(heads).flatten(1).all(1).logical_not().nonzero()
        if len(broken):
            raise DataError(
                f"stored item heads must be finite, found others in item {int(broken[0])}: remove it"
            )
        if storage != "int8":
            return cls(heads.to(TYPES[storage]))
        return cls(*_quantised(heads, ITEM_LEVELS))

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor]) -> "StoredItems":
        """Stored items from the result of `tensors`, without a copy: the tensors may be memory-mapped.

        Errors:
            ConfigError: a tensor is missing or unknown, or sizes do not match.
        """
        if set(tensors) not in ({"heads"}, {"heads", "scale"}):
            raise ConfigError(
                f"stored items are the tensors 'heads' and, for int8, 'scale', found {sorted(tensors)}"
            )
        return cls(tensors["heads"], tensors.get("scale"))

    def tensors(self) -> dict[str, Tensor]:
        """The tensors to save: `heads` [N, K, P] and, for int8, `scale` [N, K]."""
        return {"heads": self.heads} | ({} if self.scale is None else {"scale": self.scale})

    def to(self, device: torch.device) -> "StoredItems":
        """The items on a device; there they are not copied."""
        return StoredItems(
            self.heads.to(device), None if self.scale is None else self.scale.to(device)
        )

    @property
    def storage(self) -> Storage:
        """The storage type of the heads."""
        return next(name for name, dtype in TYPES.items() if dtype == self.heads.dtype)

    def floats(self, rows: slice | Tensor = slice(None)) -> Tensor:
        """The heads of items as float32 [R, K, P]."""
        heads = self.heads[rows].to(torch.float32)
        return heads if self.scale is None else heads * self.scale[rows].unsqueeze(2)

    @property
    def num_bytes(self) -> int:
        """Size of all tensors in bytes."""
        return sum(t.nbytes for t in self.tensors().values())

    def __len__(self) -> int:
        """N."""
        return len(self.heads)

    def __getitem__(self, items: slice) -> "StoredItems":
        """A contiguous range of items, as a view.

        Errors:
            ConfigError: a step other than 1: pass `rows` to `scores` instead.
        """
        if items.step not in (None, 1):
            raise ConfigError(
                f"a slice of stored items must have step 1, found {items.step}: pass rows to scores instead"
            )
        return StoredItems(self.heads[items], None if self.scale is None else self.scale[items])

    @torch.no_grad()
    def scores(self, user_HP: Tensor, rows: Tensor | None = None) -> Tensor:
        """MaxSim of users with stored items, float32, without gradients.

        The scores of a user with NaN in the heads are NaN.

        Args:
            user_HP: one user's heads, or those of several.
            rows: numbers of the items to score, in any order, with or without repetition; all items
                if omitted.

        Shape:
            user_HP: [H, P] or [U, H, P]; rows: [R], int64; returns [N] or [R], with U before them
                if it was given.

        Errors:
            ConfigError: heads of another size.
            DataError: a number that is not an item.
        """
        if user_HP.dim() not in (2, 3) or user_HP.shape[-1] != self.heads.shape[2]:
            size = self.heads.shape[2]
            found = list(user_HP.shape)
            raise ConfigError(
                f"user heads must be [H, {size}] or [U, H, {size}] like the items' heads, found {found}"
            )
        if rows is not None and (rows.dim() != 1 or rows.dtype not in (torch.int32, torch.int64)):
            raise ConfigError(
                f"rows must be int64 [R], found {rows.dtype} {list(rows.shape)}: give item numbers"
            )
        if (
            rows is not None
            and rows.numel()
            and not 0 <= int(rows.min()) <= int(rows.max()) < len(self)
        ):
            found_rows = f"{int(rows.min())} to {int(rows.max())}"
            raise DataError(
                f"rows must be numbers of the {len(self)} stored items, found {found_rows}"
            )
        user_UHP = user_HP.to(torch.float32).reshape(-1, *user_HP.shape[-2:])
        native = backend_of(user_UHP) == "native" and user_UHP.shape[1] > 0
        user, user_scale = (
            (user_UHP, None) if self.scale is None else _quantised(user_UHP, USER_LEVELS)
        )
        compute: Callable[..., Tensor] = torch.ops.fieldwise.max_sim_stored if native else _plain
        with torch.autocast(user.device.type, enabled=False):
            score_UN = compute(user, user_scale, self.heads, self.scale, rows)
        return score_UN if user_HP.dim() == 3 else score_UN.squeeze(0)


def _quantised(x_RHP: Tensor, levels: int) -> tuple[Tensor, Tensor]:
    """Every head as int8 from -levels to levels with a scale [R, H]; NaN makes the head's scale NaN."""
    scale_RH = x_RHP.abs().amax(2) / levels
    q_RHP = (x_RHP / torch.where(scale_RH > 0, scale_RH, 1.0).unsqueeze(2)).round()
    return q_RHP.nan_to_num(0.0).clamp(-levels, levels).to(torch.int8), scale_RH


def _plain(
    user_UHP: Tensor,
    user_scale: Tensor | None,
    item_NKP: Tensor,
    scale_NK: Tensor | None,
    rows: Tensor | None,
) -> Tensor:
    """Scores [U, N] in plain PyTorch, the reference implementation: integers as floats, whose sums are exact."""
    users, heads, size = user_UHP.shape
    wanted = range(0, len(item_NKP) if rows is None else len(rows), BLOCK)
    parts = [user_UHP.new_empty(users, 0, dtype=torch.float32)]
    for first in wanted:
        chunk_start: Any = (
            slice(first, first + BLOCK) if rows is None else rows[first : first + BLOCK]
        )
        block_RKP = item_NKP[chunk_start].to(torch.float32)
        product = (
            block_RKP.flatten(0, 1) @ user_UHP.to(torch.float32).reshape(users * heads, size).t()
        )
        product_RKUH = product.view(*block_RKP.shape[:2], users, heads)
        if user_scale is not None and scale_NK is not None:
            product_RKUH = product_RKUH * scale_NK[chunk_start, :, None, None] * user_scale
        parts.append(product_RKUH.amax(1).sum(2).t())
    return torch.cat(parts, 1)


define(
    "max_sim_stored(Tensor user, Tensor? user_scale, Tensor item, Tensor? scale, Tensor? rows) -> Tensor"
)


def _stored(
    user: Tensor, user_scale: Tensor | None, item: Tensor, scale: Tensor | None, rows: Tensor | None
) -> Tensor:
    user = user.contiguous()
    rows = None if rows is None else rows.to(torch.int64).contiguous()
    scores = _fake(user, user_scale, item, scale, rows)
    sizes = (*user.shape[:2], *item.shape[1:], scores.shape[1])
    operands = [user, item]
    if user_scale is not None and scale is not None:
        operands = [user, user_scale.contiguous(), item, scale.contiguous()]
    NATIVE.call(
        f"fw_maxsim_stored_{str(item.dtype).removeprefix('torch.')}", sizes, *operands, rows, scores
    )
    return scores


def _fake(
    user: Tensor, _: Tensor | None, item: Tensor, __: Tensor | None, rows: Tensor | None
) -> Tensor:
    return user.new_empty(
        user.shape[0], len(item) if rows is None else len(rows), dtype=torch.float32
    )


implement("max_sim_stored", _stored, _fake)
