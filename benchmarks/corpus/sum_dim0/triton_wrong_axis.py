# expect: incorrect
import torch
import triton
import triton.language as tl


@triton.jit
def column_sum(x_ptr, out_ptr, rows, cols, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    c = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    acc = tl.zeros((BLOCK_R, BLOCK_C), dtype=tl.float32)
    for start in range(0, rows, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R)
        mask = (r[:, None] < rows) & (c[None, :] < cols)
        acc += tl.load(x_ptr + r[:, None] * cols + c[None, :], mask=mask, other=0.0)
    tl.store(out_ptr + c, tl.sum(acc, axis=1), mask=c < cols)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        out = torch.empty(cols, device=x.device, dtype=x.dtype)
        column_sum[(triton.cdiv(cols, 32),)](x, out, rows, cols, BLOCK_R=32, BLOCK_C=32)
        return out
