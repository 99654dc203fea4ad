"""Root-mean-square norms as one operation.

`transformers` writes RMSNorm as six small operations; on the CPU they cost more than the
arithmetic. PyTorch has them as one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["fuse_norms"]


class FusedRMSNorm(nn.Module):
    """x · weight / sqrt(mean(x²) + eps) over the last dimension."""

    def __init__(self, weight: nn.Parameter, eps: float) -> None:
        super().__init__()
        self.weight = weight
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


@torch.no_grad()
def fuse_norms(model: nn.Module) -> int:
    """Put fused norms in the place of those that compute the same, in float32 on the CPU.

    What a module computes is tried, not read off its name: some architectures scale by
    1 + weight, or round in between. Weights are shared. Returns how many were replaced.
    """
    count = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            weight, eps = getattr(child, "weight", None), getattr(child, "variance_epsilon", None)
            if (
                not type(child).__name__.endswith("RMSNorm")
                or not isinstance(weight, nn.Parameter)
                or not isinstance(eps, float)
                or weight.dtype != torch.float32
                or weight.device.type != "cpu"
                or len(list(child.parameters())) != 1
            ):
                continue
            fused = FusedRMSNorm(weight, eps)
            x = torch.linspace(-3, 5, 2 * weight.numel()).view(2, -1)
            if torch.allclose(fused(x), child(x), rtol=1e-5, atol=1e-6):
                setattr(parent, name, fused)
                count += 1
    return count
