# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def conv_relu_kernel(x_ptr, w_ptr, b_ptr, y_ptr, CI, CO, H, W, BLOCK: tl.constexpr):
    """Program (batch and output channel, block of pixels)."""
    pid = tl.program_id(0)
    n, co = pid // CO, pid % CO
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    h, w = p // W, p % W
    inside = p < H * W
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for ci in range(CI):
        for kh in range(3):
            for kw in range(3):
                ih = h + kh - 1
                iw = w + kw - 1
                mask = inside & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
                x = tl.load(x_ptr + ((n * CI + ci) * H + ih) * W + iw, mask=mask, other=0.0)
                weight = tl.load(w_ptr + ((co * CI + ci) * 3 + kh) * 3 + kw)
                acc += x * weight
    acc += tl.load(b_ptr + co)
    tl.store(y_ptr + (n * CO + co) * H * W + p, tl.maximum(acc, 0.0), mask=inside)


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)

    def forward(self, x):
        n, ci, h, w = x.shape
        co = self.conv.out_channels
        y = torch.empty((n, co, h, w), device=x.device, dtype=x.dtype)
        block = 512 if h * w >= 512 else 32
        conv_relu_kernel[(n * co, triton.cdiv(h * w, block))](
            x, self.conv.weight, self.conv.bias, y, ci, co, h, w, BLOCK=block
        )
        return y
