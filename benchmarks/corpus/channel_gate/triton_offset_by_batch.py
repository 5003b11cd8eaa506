# expect: incorrect|runtime_error
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def gate_kernel(x_ptr, offset_ptr, y_ptr, channels, hw, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < hw
    x = tl.load(x_ptr + plane * hw + i, mask=mask, other=0.0)
    mean = tl.sum(x, axis=0) / hw
    gate = tl.sigmoid(mean * 4 + tl.load(offset_ptr + (plane // channels) % channels))
    tl.store(y_ptr + plane * hw + i, x * gate, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(1, channels, 1, 1))

    def forward(self, x):
        b, c, h, w = x.shape
        y = torch.empty_like(x)
        gate_kernel[(b * c,)](x, self.offset, y, c, h * w, BLOCK=triton.next_power_of_2(h * w), num_warps=8)
        return y
