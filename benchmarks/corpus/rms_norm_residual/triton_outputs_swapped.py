# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def add_rms_norm(x_ptr, r_ptr, w_ptr, y_ptr, h_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    at = row * cols + c
    h = tl.load(x_ptr + at, mask=mask, other=0.0) + tl.load(r_ptr + at, mask=mask, other=0.0)
    mean_square = tl.sum(h * h, axis=0) / cols
    w = tl.load(w_ptr + c, mask=mask, other=0.0)
    tl.store(y_ptr + at, h * tl.rsqrt(mean_square + eps) * w, mask=mask)
    tl.store(h_ptr + at, h, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, columns, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns) + 0.5)
        self.eps = eps

    def forward(self, x, residual):
        rows, cols = x.shape
        y, h = torch.empty_like(x), torch.empty_like(x)
        add_rms_norm[(rows,)](x, residual, self.weight, y, h, cols, self.eps, BLOCK=triton.next_power_of_2(cols))
        return h, y
