# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def l2_kernel(x_ptr, y_ptr, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros([BLOCK], dtype=tl.float32)
    # first pass: sum of squares
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + offs, mask=offs < cols, other=0.0)
        acc += x * x
    norm = tl.sqrt(tl.sum(acc, axis=0)) + eps
    # second pass: divide
    for start in range(0, cols, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * cols + offs, mask=offs < cols, other=0.0)
        tl.store(y_ptr + row * cols + offs, x / norm, mask=offs < cols)


class ModelNew(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        y = torch.empty_like(x)
        rows, cols = x.shape
        BLOCK = 1024 if cols >= 1024 else 64
        l2_kernel[(rows,)](x, y, cols, self.eps, BLOCK=BLOCK)
        return y
