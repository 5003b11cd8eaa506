# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def rope_kernel(x_ptr, cos_ptr, sin_ptr, y_ptr, S, H, half, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    d = i % half
    vector = i // half
    s = (vector // H) % S
    c = tl.load(cos_ptr + s * half + d, mask=mask, other=0.0)
    sn = tl.load(sin_ptr + s * half + d, mask=mask, other=0.0)
    at = vector * 2 * half + d
    first = tl.load(x_ptr + at, mask=mask, other=0.0)
    second = tl.load(x_ptr + at + half, mask=mask, other=0.0)
    tl.store(y_ptr + at, first * c - second * sn, mask=mask)
    tl.store(y_ptr + at + half, second * c + first * sn, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x, cos, sin):
        _, s, h, d = x.shape
        y = torch.empty_like(x)
        n = x.numel() // 2
        rope_kernel[(triton.cdiv(n, 512),)](x, cos, sin, y, s, h, d // 2, n, BLOCK=512)
        return y
