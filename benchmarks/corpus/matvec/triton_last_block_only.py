# expect: incorrect
import torch
import triton
import triton.language as tl


@triton.jit
def matvec_kernel(a_ptr, v_ptr, y_ptr, rows, cols, BR: tl.constexpr, BC: tl.constexpr):
    r = tl.program_id(0) * BR + tl.arange(0, BR)
    acc = tl.zeros((BR, BC), tl.float32)
    for start in range(0, cols, BC):
        c = start + tl.arange(0, BC)
        v = tl.load(v_ptr + c, mask=c < cols, other=0.0)
        a = tl.load(a_ptr + r[:, None] * cols + c[None, :], mask=(r[:, None] < rows) & (c[None, :] < cols), other=0.0)
        acc = a * v[None, :]
    tl.store(y_ptr + r, tl.sum(acc, axis=1), mask=r < rows)


class ModelNew(torch.nn.Module):
    def forward(self, a, v):
        rows, cols = a.shape
        y = torch.empty((rows,), device=a.device, dtype=a.dtype)
        matvec_kernel[(triton.cdiv(rows, 4),)](a, v, y, rows, cols, BR=4, BC=256 if cols >= 256 else 32)
        return y
