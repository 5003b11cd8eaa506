# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def _tanh(v):
    return 2.0 * tl.sigmoid(2.0 * v) - 1.0


@triton.jit
def clamp_divide_kernel(src, dst, low, high, divisor, size, BLOCK: tl.constexpr):
    idx = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = idx < size
    v = tl.load(src + idx, mask=inside, other=0.0)
    v = tl.minimum(tl.maximum(v, low), high)
    tl.store(dst + idx, _tanh(v / divisor), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, low, high, divisor):
        super().__init__()
        self.settings = (low, high, divisor)

    def forward(self, x):
        x = x.contiguous()
        out = torch.empty_like(x)
        clamp_divide_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, *self.settings, x.numel(), BLOCK=1024)
        return out
