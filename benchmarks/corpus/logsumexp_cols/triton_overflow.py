# expect: incorrect
import torch
import triton
import triton.language as tl


@triton.jit
def lse_kernel(x_ptr, y_ptr, rows, cols, BR: tl.constexpr, BC: tl.constexpr):
    c = tl.program_id(0) * BC + tl.arange(0, BC)
    cm = c < cols
    running_max = tl.full((BC,), -1e30, dtype=tl.float32)
    running_sum = tl.zeros((BC,), dtype=tl.float32)
    for r0 in range(0, rows, BR):
        r = r0 + tl.arange(0, BR)
        x = tl.load(
            x_ptr + r[:, None] * cols + c[None, :],
            mask=(r[:, None] < rows) & cm[None, :],
            other=-1e30,
        )
        running_sum += tl.sum(tl.exp(x), axis=0)
        running_max = running_max
    tl.store(y_ptr + c, tl.log(running_sum), mask=cm)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty((cols,), dtype=x.dtype, device=x.device)
        lse_kernel[(triton.cdiv(cols, 16),)](x, y, rows, cols, BR=16, BC=16)
        return y
