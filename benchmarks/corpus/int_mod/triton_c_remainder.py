# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mod_kernel(a_ptr, b_ptr, o_ptr, modulus, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    a = tl.load(a_ptr + offs, mask=mask, other=0)
    b = tl.load(b_ptr + offs, mask=mask, other=0)
    r = (a * 3 + b) % modulus
    # C's remainder takes the dividend's sign, Python's the divisor's.

    tl.store(o_ptr + offs, r, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, modulus):
        super().__init__()
        self.modulus = modulus

    def forward(self, a, b):
        out = torch.empty_like(a)
        mod_kernel[(triton.cdiv(a.numel(), 1024),)](a, b, out, self.modulus, a.numel(), BLOCK=1024)
        return out
