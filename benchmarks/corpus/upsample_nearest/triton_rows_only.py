# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def upsample_kernel(x_ptr, y_ptr, H, W, scale, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    ow = W * scale
    w = i % W
    h = i // ow % (H * scale) // scale
    plane = i // (ow * H * scale)
    tl.store(y_ptr + i, tl.load(x_ptr + (plane * H + h) * W + w, mask=mask), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        b, c, h, w = x.shape
        y = torch.empty((b, c, h * self.scale, w * self.scale), device=x.device, dtype=x.dtype)
        n = y.numel()
        upsample_kernel[(triton.cdiv(n, 1024),)](x, y, h, w, self.scale, n, BLOCK=1024)
        return y
