# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def smooth_l1_kernel(x_ptr, y_ptr, out_ptr, cols, beta, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    c = tl.arange(0, BLOCK)
    mask = c < cols
    d = tl.load(x_ptr + row * cols + c, mask=mask, other=0.0) - tl.load(y_ptr + row * cols + c, mask=mask, other=0.0)
    a = tl.abs(d)
    loss = tl.where(a < beta, 0.5 * d * d / beta, a - 0.5 * beta)
    tl.store(out_ptr + row, tl.sum(loss, axis=0))


class ModelNew(nn.Module):
    def __init__(self, beta):
        super().__init__()
        self.beta = beta

    def forward(self, x, y):
        out = torch.empty(x.shape[0], device=x.device, dtype=x.dtype)
        smooth_l1_kernel[(x.shape[0],)](x, y, out, x.shape[1], self.beta, BLOCK=triton.next_power_of_2(x.shape[1]))
        return out
