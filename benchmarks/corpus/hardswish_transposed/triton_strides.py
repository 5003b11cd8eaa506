# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def hardswish_add(x_ptr, y_ptr, o_ptr, n, m, sxn, sxm, syn, sym, BN: tl.constexpr, BM: tl.constexpr):
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rm = tl.program_id(1) * BM + tl.arange(0, BM)
    mask = (rn[:, None] < n) & (rm[None, :] < m)
    x = tl.load(x_ptr + rn[:, None] * sxn + rm[None, :] * sxm, mask=mask, other=0.0)
    y = tl.load(y_ptr + rn[:, None] * syn + rm[None, :] * sym, mask=mask, other=0.0)
    gate = tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) / 6.0
    tl.store(o_ptr + rn[:, None] * m + rm[None, :], x * gate + y, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, y):
        n, m = x.shape
        out = torch.empty((n, m), device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(n, 32), triton.cdiv(m, 32))
        hardswish_add[grid](x, y, out, n, m, x.stride(0), x.stride(1), y.stride(0), y.stride(1), BN=32, BM=32)
        return out
