# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def var_mean_kernel(x_ptr, var_ptr, mean_ptr, rows, cols, R: tl.constexpr, C: tl.constexpr):
    r = tl.program_id(0) * R + tl.arange(0, R)
    c = tl.arange(0, C)
    mask = (r[:, None] < rows) & (c[None, :] < cols)
    x = tl.load(x_ptr + r[:, None] * cols + c[None, :], mask=mask, other=0.0)
    mean = tl.sum(x, axis=1) / cols
    d = tl.where(mask, x - mean[:, None], 0.0)
    # the unbiased estimate divides by one less
    var = tl.sum(d * d, axis=1) / (cols - 1)
    tl.store(var_ptr + r, var, mask=r < rows)
    tl.store(mean_ptr + r, mean, mask=r < rows)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        var = torch.empty(rows, device=x.device, dtype=x.dtype)
        mean = torch.empty_like(var)
        var_mean_kernel[(triton.cdiv(rows, 4),)](x, var, mean, rows, cols, R=4, C=triton.next_power_of_2(cols))
        return {"var": mean, "mean": var}
