# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def swiglu_kernel(x_ptr, y_ptr, half, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = c < half
    gate = tl.load(x_ptr + row * 2 * half + c, mask=mask, other=0.0)
    value = tl.load(x_ptr + row * 2 * half + half + c, mask=mask, other=0.0)
    silu = value / (1.0 + tl.exp(-value))
    tl.store(y_ptr + row * half + c, silu * gate, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, width = x.shape
        half = width // 2
        y = torch.empty((rows, half), device=x.device, dtype=x.dtype)
        BLOCK = min(1024, triton.next_power_of_2(half))
        swiglu_kernel[(rows, triton.cdiv(half, BLOCK))](x, y, half, BLOCK=BLOCK)
        return y
