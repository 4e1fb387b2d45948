"""Batch norms over the global batch, so that they equal those of a single process.

torch's SyncBatchNorm needs CUDA; this one needs only a differentiable sum over the ranks.

Shape legend: B rows of this rank, C channels.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_reduce


class GlobalBatchNorm(nn.BatchNorm1d):
    """BatchNorm1d over the rows of all ranks, with the same parameters and buffers, so that checkpoints do not differ.

    mean = Σ x / n and var = Σ (x − mean)² / n over the n rows of all ranks: two small all-reduces per call. The running
    variance is corrected by n / (n − 1), as in torch. A single row has no variance; then the running statistics are
    used.
    """

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's own name
        if not self.training:
            return super().forward(input)
        count = torch.tensor([float(len(input))], device=input.device)
        sums = all_reduce(torch.cat([input.float().sum(dim=0), count]))
        total = sums[-1].detach()
        mean_C = sums[:-1] / total
        var_C = all_reduce((input.float() - mean_C).square().sum(dim=0)) / total
        if float(total) > 1:
            self._remember(mean_C.detach(), var_C.detach() * total / (total - 1))
        else:
            assert self.running_mean is not None
            assert self.running_var is not None
            mean_C, var_C = self.running_mean, self.running_var
        out_BC = (input - mean_C) * (var_C + self.eps).rsqrt()
        return (out_BC * self.weight + self.bias if self.affine else out_BC).to(input.dtype)

    @torch.no_grad()
    def _remember(self, mean_C: Tensor, var_C: Tensor) -> None:
        if not self.track_running_stats:
            return
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean_C, share)
        self.running_var.lerp_(var_C, share)


def synchronise_batch_norms(module: nn.Module) -> nn.Module:
    """Replaces every BatchNorm1d of ``module`` by a :class:`GlobalBatchNorm` if there are several ranks; in place."""
    if dist.get_world_size() == 1:
        return module
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, nn.BatchNorm1d):
                setattr(parent, name, _of(child))
    return module


def _of(norm: nn.BatchNorm1d) -> GlobalBatchNorm:
    made = GlobalBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    made.load_state_dict(norm.state_dict())
    return made.to(next(iter(norm.state_dict().values())).device)
