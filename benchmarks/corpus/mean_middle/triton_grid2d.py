# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def mean_kernel(x_ptr, y_ptr, D, C, BLOCK_C: tl.constexpr):
    b = tl.program_id(0)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    mask = c < C
    acc = tl.zeros((BLOCK_C,), dtype=tl.float32)
    base = x_ptr + b * D * C
    for d in range(D):
        acc += tl.load(base + d * C + c, mask=mask, other=0.0)
    tl.store(y_ptr + b * C + c, acc / D, mask=mask)


class ModelNew(nn.Module):
    def forward(self, x):
        b, d, c = x.shape
        y = torch.empty((b, c), device=x.device, dtype=x.dtype)
        block = 128 if c >= 128 else 16
        mean_kernel[(b, triton.cdiv(c, block))](x, y, d, c, BLOCK_C=block)
        return y
