# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def group_norm_kernel(x_ptr, w_ptr, b_ptr, y_ptr, groups, per_group, hw, eps, BLOCK: tl.constexpr):
    pid = tl.program_id(0)  # batch * groups + group
    group = pid % groups
    size = per_group * hw
    base = pid.to(tl.int64) * size
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + base + i, mask=i < size, other=0.0)
    mean = tl.sum(total, 0) / size
    squares = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        d = tl.load(x_ptr + base + i, mask=i < size, other=0.0) - mean
        squares += tl.where(i < size, d * d, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(squares, 0) / size + eps)
    for start in range(0, size, BLOCK):
        i = start + tl.arange(0, BLOCK)
        m = i < size
        channel = group * per_group + i // hw
        w = tl.load(w_ptr + channel, mask=m, other=0.0)
        b = tl.load(b_ptr + channel, mask=m, other=0.0)
        x = tl.load(x_ptr + base + i, mask=m, other=0.0)
        tl.store(y_ptr + base + i, (x - mean) * rstd * w + b, mask=m)


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.gn = nn.GroupNorm(groups, channels)

    def forward(self, x):
        n, c, h, w = x.shape
        g = self.gn.num_groups
        y = torch.empty_like(x)
        BLOCK = 1024 if c // g * h * w > 1024 else 32
        group_norm_kernel[(n * g,)](x, self.gn.weight, self.gn.bias, y, g, c // g, h * w, self.gn.eps, BLOCK=BLOCK)
        return y
