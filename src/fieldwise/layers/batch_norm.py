"""Batch normalization over the rows of all processes that share a batch.

Letters: B rows of this process, A rows of all, C units, P processes.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from fieldwise.distributed.process_group import current_group
from fieldwise.errors import ConfigError


class GlobalBatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` with the mean and variance of the whole batch, of which each process has some rows.

    PyTorch's SyncBatchNorm does the same on GPUs alone. Weights and buffers have the names of
    `nn.BatchNorm1d`.

    Shape:
        forward: [B, C] -> [B, C].

    >>> GlobalBatchNorm(2).train()(torch.tensor([[0.0, 1.0], [2.0, 1.0]])).round(decimals=3).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002  # PyTorch's name
        group = current_group()
        if group is None or not self.training:
            return super().forward(input)
        if input.dim() != 2:
            raise ConfigError(
                "with several processes batch normalization takes rows [B, C], found an input of shape "
                f"{list(input.shape)}: train with one process, or set the model's batch_norm = false"
            )
        # statistics are not in 16 bits
        input = input.to(torch.promote_types(input.dtype, torch.float32))  # noqa: A001
        with torch.no_grad():
            rows_here = input.shape[0]
            mean_C = input.sum(0) / max(rows_here, 1)
            squares_C = (input - mean_C).square().sum(0)
            every_P3C = group.all_gather(
                torch.stack([torch.full_like(mean_C, rows_here), mean_C, squares_C])
            )
            rows_P1 = every_P3C[:, 0, :1]
            means_PC = every_P3C[:, 1]
            squares_PC = every_P3C[:, 2]
            rows = int(rows_P1.sum())
            mean_C = (rows_P1 * means_PC).sum(0) / rows
            var_C = (squares_PC + rows_P1 * (means_PC - mean_C).square()).sum(0) / rows
            # As nn.BatchNorm1d updates them.
            if (
                self.running_mean is not None
                and self.running_var is not None
                and self.num_batches_tracked is not None
            ):
                self.num_batches_tracked.add_(1)
                share = (
                    1.0 / float(self.num_batches_tracked)
                    if self.momentum is None
                    else self.momentum
                )
                self.running_mean.lerp_(mean_C, share)
                self.running_var.lerp_(var_C * (rows / max(rows - 1, 1)), share)
        scale_C = torch.rsqrt(var_C + self.eps)
        result: Tensor = _Normalize.apply(input, mean_C, scale_C, rows)  # type: ignore[no-untyped-call]
        return result if self.weight is None else result * self.weight + self.bias


class _Normalize(torch.autograd.Function):
    """`(x - mean) / deviation` of all processes' rows; its gradient takes part in both."""

    @staticmethod
    def forward(ctx: Any, x_BC: Tensor, mean_C: Tensor, scale_C: Tensor, rows: int) -> Tensor:
        y_BC = (x_BC - mean_C) * scale_C
        ctx.save_for_backward(y_BC, scale_C)
        ctx.rows = rows
        return y_BC

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        y_BC, scale_C = ctx.saved_tensors
        sums_2C = torch.stack([grads[0].sum(0), (grads[0] * y_BC).sum(0)])
        dist.all_reduce(sums_2C)
        mean_2C = sums_2C / ctx.rows
        return (grads[0] - mean_2C[0] - y_BC * mean_2C[1]) * scale_C, None, None, None


def normalize_over_processes(network: nn.Module) -> None:
    """Let a network's batch normalizations, in place, take in all processes' rows.

    Errors:
        ConfigError: one of a kind that cannot.
    """
    for module in network.modules():
        for name, child in list(module.named_children()):
            if type(child) is nn.BatchNorm1d:
                settings = (
                    child.num_features,
                    child.eps,
                    child.momentum,
                    child.affine,
                    child.track_running_stats,
                )
                synchronized = GlobalBatchNorm(*settings)
                synchronized._parameters = child._parameters
                synchronized._buffers = child._buffers
                setattr(module, name, synchronized.train(child.training))
    for name, module in network.named_modules():
        if (
            isinstance(module, _NormBase)
            and module.track_running_stats
            and type(module) is not GlobalBatchNorm
        ):
            raise ConfigError(
                f"with several processes {type(network).__name__} cannot be trained as with one: {name} is a "
                f"{type(module).__name__}, which would normalize over each process's rows alone; use nn.BatchNorm1d, "
                "or train with one process"
            )
