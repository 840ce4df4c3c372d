"""Products of pairs of fields, and the factorization machine's logit from ids and tables: plain and native backends.

Letters: B batch, F fields, P = F(F-1)/2 pairs, R rows of the table, D embedding size, N candidates,
C context fields, I candidates' fields.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from fieldwise.errors import ConfigError
from fieldwise.ops.native import (
    backend_of,
    float32_under_autocast,
    implement_with_gradient,
    type_name,
)
from fieldwise.ops.rows import LARGEST, call_by_ids, no_row


def pair_indices(num_fields: int) -> tuple[Tensor, Tensor]:
    """The indices of all pairs i < j, ordered by i, then j.

    Shape:
        two int64 vectors [P].

    >>> pair_indices(3)
    (tensor([0, 0, 1]), tensor([1, 2, 2]))
    """
    left_P, right_P = torch.triu_indices(num_fields, num_fields, 1)
    return left_P.contiguous(), right_P.contiguous()


def pair_products(x_BFD: Tensor, left_P: Tensor, right_P: Tensor) -> Tensor:
    """The elementwise products `x_i * x_j` of the given pairs (AFM's pair-wise interaction layer, Equation 2).

    Shape:
        x_BFD: [B, F, D]; left_P, right_P: [P]; returns [B, P, D].

    >>> pair_products(torch.tensor([[[1.0], [2.0], [3.0]]]), *pair_indices(3)).flatten()
    tensor([2., 3., 6.])
    """
    return x_BFD.index_select(1, left_P) * x_BFD.index_select(1, right_P)


def fm_second_order(x_BFD: Tensor) -> Tensor:
    """`sum_{i<j} <x_i, x_j>` in O(F D), as half of the square of the sum minus the sum of squares (Rendle, 2010).

    Shape:
        x_BFD: [B, F, D]; returns [B].

    >>> fm_second_order(torch.tensor([[[1.0], [2.0], [3.0]]]))
    tensor([11.])
    """
    return 0.5 * (x_BFD.sum(1).square() - x_BFD.square().sum(1)).sum(-1)


def fm_second_order_candidates(x_context_CD: Tensor, x_candidates_NID: Tensor) -> Tensor:
    """`fm_second_order` of the context's vectors with each candidate's; the context's sums are computed once.

    Shape:
        x_context_CD: [C, D]; x_candidates_NID: [N, I, D]; returns [N].

    >>> fm_second_order_candidates(torch.tensor([[1.0], [2.0]]), torch.tensor([[[3.0]], [[5.0]]]))
    tensor([11., 17.])
    """
    inside = fm_second_order(x_context_CD.unsqueeze(0))
    crossed_N = torch.mv(x_candidates_NID.sum(1), x_context_CD.sum(0))
    return fm_second_order(x_candidates_NID) + crossed_N + inside


def fm_logit(table_RD: Tensor, first_R1: Tensor, ids_BF: Tensor) -> Tensor:
    """`sum_f w_f + sum_{i<j} <x_i, x_j>` for rows given by ids (Rendle, ICDM 2010, Equation 1, without the bias).

    The native backend stores no field vectors: forward and backward pass read them from the table.
    Its gradient is dense and has no second derivative; gradients of a table's row are summed in the
    batch's order, for any number of threads. If a sum of squares overflows, the plain backend
    returns NaN (infinity minus infinity), while the native one may return infinity.

    Args:
        table_RD: the embedding vectors of all fields' categories.
        first_R1: their first-order weights.
        ids_BF: row ids, int32 or int64.

    Shape:
        table_RD: [R, D]; first_R1: [R, 1]; ids_BF: [B, F]; returns [B].

    Errors:
        IndexError: an id that is not a row of the table.

    >>> table, first = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[0.5], [0.0], [0.0]])
    >>> fm_logit(table, first, torch.tensor([[0, 1], [1, 2]]))
    tensor([2.5000, 6.0000])
    """
    native = backend_of(table_RD, first_R1) == "native" and ids_BF.dtype in (
        torch.int32,
        torch.int64,
    )
    if native and table_RD.shape[0] <= LARGEST:
        return torch.ops.fieldwise.fm_logit(table_RD, first_R1, ids_BF)[0]
    table_RD, first_R1 = float32_under_autocast(table_RD, first_R1)
    linear_B = F.embedding(ids_BF, first_R1).sum((1, 2))
    return linear_B + fm_second_order(F.embedding(ids_BF, table_RD))


def _forward(table: Tensor, first: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits [B], and the sums of the fields' vectors [B, D] for the backward pass."""
    if table.dim() != 2 or first.shape != (table.shape[0], 1) or ids.dim() != 2:
        shapes = f"{list(table.shape)}, {list(first.shape)} and {list(ids.shape)}"
        raise ConfigError(
            f"fm_logit takes a table [R, D], first-order weights [R, 1] and ids [B, F], found {shapes}"
        )
    operands = [t.contiguous() for t in (table, first, _narrow(ids, table.shape[0]))]
    outputs = _fake(table, first, ids)
    name = f"fw_fm_forward_{type_name(table, first)}"
    call_by_ids(name, ids, table.shape[0], (*ids.shape, *table.shape), *operands, *outputs)
    return outputs


def _backward(
    table: Tensor, first: Tensor, ids: Tensor, sums: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    operands = [t.contiguous() for t in (table, first, _narrow(ids, table.shape[0]), sums, grad)]
    grads = tuple(map(torch.zeros_like, operands[:2]))
    name = f"fw_fm_backward_{type_name(table, first, sums, grad)}"
    # checked again: ids in shared memory may have changed meanwhile
    call_by_ids(name, ids, table.shape[0], (*ids.shape, *table.shape), *operands, *grads)
    return grads[0], grads[1]


def _narrow(ids: Tensor, rows: int) -> Tensor:
    """Ids as int32, whose range the kernels check; int64 ids are checked here, since they could wrap around."""
    if (
        ids.dtype != torch.int32
        and ids.numel()
        and not -1 < int(ids.min()) <= int(ids.max()) < rows
    ):
        raise no_row(ids, rows)
    return ids.int()


def _fake(table: Tensor, _: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    return table.new_empty(ids.shape[0]), table.new_empty(ids.shape[0], table.shape[1])


implement_with_gradient(
    "fm_logit(Tensor table, Tensor first, Tensor ids) -> (Tensor, Tensor)",
    _forward,
    _fake,
    _backward,
    into=(0, 1),
    keeps=(1,),
)
