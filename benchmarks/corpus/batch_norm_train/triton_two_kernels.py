# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def stats_kernel(x_ptr, mean_ptr, rstd_ptr, batch, channels, hw, eps, BLOCK: tl.constexpr):
    c = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    count = batch * hw
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        at = (i // hw) * channels * hw + c * hw + i % hw
        total += tl.load(x_ptr + at, mask=i < count, other=0.0)
    mean = tl.sum(total, axis=0) / count
    square = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        at = (i // hw) * channels * hw + c * hw + i % hw
        d = tl.load(x_ptr + at, mask=i < count, other=0.0) - mean
        square += tl.where(i < count, d * d, 0.0)
    var = tl.sum(square, axis=0) / count
    tl.store(mean_ptr + c, mean)
    tl.store(rstd_ptr + c, 1.0 / tl.sqrt(var + eps))


@triton.jit
def apply_kernel(x_ptr, mean_ptr, rstd_ptr, w_ptr, b_ptr, y_ptr, channels, hw, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    c = (i // hw) % channels
    x = tl.load(x_ptr + i, mask=mask, other=0.0)
    mean = tl.load(mean_ptr + c, mask=mask, other=0.0)
    rstd = tl.load(rstd_ptr + c, mask=mask, other=0.0)
    w = tl.load(w_ptr + c, mask=mask, other=0.0)
    b = tl.load(b_ptr + c, mask=mask, other=0.0)
    y = (x - mean) * rstd * w + b
    tl.store(y_ptr + i, tl.maximum(y, 0.0), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        b, c, h, w = x.shape
        mean = torch.empty(c, device=x.device, dtype=torch.float32)
        rstd = torch.empty_like(mean)
        y = torch.empty_like(x)
        stats_kernel[(c,)](x, mean, rstd, b, c, h * w, self.bn.eps, BLOCK=1024 if b * h * w > 2000 else 64)
        n = x.numel()
        apply_kernel[(triton.cdiv(n, 1024),)](
            x, mean, rstd, self.bn.weight, self.bn.bias, y, c, h * w, n, BLOCK=1024
        )
        return y
