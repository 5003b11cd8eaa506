# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def argmin_kernel(x_ptr, out_ptr, D, C, BLOCK: tl.constexpr):
    b = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = c < C
    best = tl.full((BLOCK,), float("inf"), tl.float32)
    where = tl.zeros((BLOCK,), tl.int64)
    for d in range(0, D):
        x = tl.load(x_ptr + (b * D + d) * C + c, mask=mask, other=float("inf"))
        smaller = x < best
        best = tl.where(smaller, x, best)
        where = tl.where(smaller, d, where)
    tl.store(out_ptr + b * C + c, where, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        assert dim == 1
        self.dim = dim

    def forward(self, x):
        b, d, c = x.shape
        out = torch.empty((b, c), dtype=torch.int64, device=x.device)
        block = min(256, triton.next_power_of_2(c))
        argmin_kernel[(b, triton.cdiv(c, block))](x, out, d, c, BLOCK=block)
        return out
