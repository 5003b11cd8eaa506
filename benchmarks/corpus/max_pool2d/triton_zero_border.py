# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def max_pool_kernel(x_ptr, y_ptr, H, W, OH, OW, n, stride, padding, KS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    ow = i % OW
    oh = (i // OW) % OH
    plane = i // (OW * OH)
    best = tl.zeros((BLOCK,), tl.float32)
    for kh in tl.static_range(KS):
        for kw in tl.static_range(KS):
            h = oh * stride - padding + kh
            w = ow * stride - padding + kw
            ok = live & (h >= 0) & (h < H) & (w >= 0) & (w < W)
            best = tl.maximum(best, tl.load(x_ptr + plane * H * W + h * W + w, mask=ok, other=float("-inf")))
    tl.store(y_ptr + i, best, mask=live)


class ModelNew(nn.Module):
    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def forward(self, x):
        b, c, h, w = x.shape
        oh = (h + 2 * self.padding - self.kernel) // self.stride + 1
        ow = (w + 2 * self.padding - self.kernel) // self.stride + 1
        y = torch.empty((b, c, oh, ow), device=x.device, dtype=x.dtype)
        n = y.numel()
        max_pool_kernel[(triton.cdiv(n, 256),)](
            x, y, h, w, oh, ow, n, self.stride, self.padding, KS=self.kernel, BLOCK=256
        )
        return y
