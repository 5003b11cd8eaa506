# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def fused_kernel(
    x_ptr,
    bias_ptr,
    scale_ptr,
    out_ptr,
    n_cols,
    BLOCK: tl.constexpr,
):
    """One program per row and block of columns."""
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = cols < n_cols
    x = tl.load(x_ptr + row * n_cols + cols, mask=mask, other=0.0)
    b = tl.load(bias_ptr + cols, mask=mask, other=0.0)
    s = tl.load(scale_ptr + cols, mask=mask, other=0.0)
    h = x + b
    out = h * tl.sigmoid(h) * s
    tl.store(out_ptr + row * n_cols + cols, out, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(columns))
        self.scale = nn.Parameter(torch.rand(columns) + 0.5)

    def forward(self, x):
        rows, cols = x.shape
        out = torch.empty_like(x)
        BLOCK = 1024
        fused_kernel[(rows, triton.cdiv(cols, BLOCK))](x, self.bias, self.scale, out, cols, BLOCK=BLOCK)
        return out
