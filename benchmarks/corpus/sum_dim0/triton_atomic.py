# expect: correct
import torch
import triton
import triton.language as tl


@triton.jit
def column_sum_atomic(x_ptr, out_ptr, rows, cols, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    r = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    tile = tl.load(x_ptr + r[:, None] * cols + c[None, :], mask=mask, other=0.0)
    tl.atomic_add(out_ptr + c, tl.sum(tile, axis=0), mask=c < cols)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        out = torch.zeros(cols, device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(cols, 64), triton.cdiv(rows, 64))
        column_sum_atomic[grid](x, out, rows, cols, BLOCK_R=64, BLOCK_C=64)
        return out
