# expect: runtime_error
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _layer_norm_fwd(X, Y, W, B, stride, N, eps, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK_SIZE)
    mask = cols < N
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / N
    diff = tl.where(mask, x - mean, 0.0)
    var = tl.sum(diff * diff, axis=0) / N
    rstd = 1 / tl.sqrt(var + eps)
    w = tl.load(W + cols, mask=mask)
    b = tl.load(B + cols, mask=mask)
    y = diff * rstd * w + b
    tl.store(Y + row * stride + cols, y, mask=mask)


class ModelNew(nn.Module):
    """LayerNorm whose parameters live in an nn.LayerNorm."""

    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x):
        x = x.contiguous()
        M, N = x.shape
        y = torch.empty_like(x)
        _layer_norm_fwd[(M,)](
            x, y, self.norm.weight, self.norm.bias, x.stride(0), N, BLOCK_SIZE=triton.next_power_of_2(N)
        )
        return y
