# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cosine_kernel(a_ptr, b_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offs = tl.arange(0, BLOCK)
    mask = offs < cols
    a = tl.load(a_ptr + row * cols + offs, mask=mask, other=0.0)
    b = tl.load(b_ptr + row * cols + offs, mask=mask, other=0.0)
    dot = tl.sum(a * b, axis=0)
    na = tl.sqrt(tl.sum(a * a, axis=0))
    nb = tl.sqrt(tl.sum(b * b, axis=0))
    eps = 1e-8
    tl.store(out_ptr + row, dot / (tl.maximum(na, eps) * tl.maximum(nb, eps)))


class ModelNew(nn.Module):
    def forward(self, a, b):
        rows, cols = a.shape
        out = torch.empty(rows, device=a.device, dtype=a.dtype)
        cosine_kernel[(rows,)](a, b, out, cols, BLOCK=triton.next_power_of_2(cols), num_warps=4)
        return out
