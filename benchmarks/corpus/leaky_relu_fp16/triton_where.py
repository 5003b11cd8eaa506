# expect: correct
import torch
import triton
import triton.language as tl


@triton.jit
def leaky(x_ptr, o_ptr, slope, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ok = i < n
    x = tl.load(x_ptr + i, mask=ok, other=0.0).to(tl.float32)
    y = tl.where(x >= 0, x, x * slope)
    tl.store(o_ptr + i, y.to(tl.float16), mask=ok)


class ModelNew(torch.nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        o = torch.empty_like(x)
        n = x.numel()
        leaky[(triton.cdiv(n, 4096),)](x, o, self.slope, n, BLOCK=4096, num_warps=8)
        return o
