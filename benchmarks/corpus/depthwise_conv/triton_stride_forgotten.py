# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def depthwise_kernel(x_ptr, w_ptr, y_ptr, C, H, W, OH, OW, stride, BLOCK: tl.constexpr):
    plane = tl.program_id(0)
    c = plane % C
    p = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    oh, ow = p // OW, p % OW
    acc = tl.zeros((BLOCK,), tl.float32)
    for tap in tl.static_range(9):
        ih = oh * stride + tap // 3 - 1
        iw = ow + tap % 3 - 1
        ok = (p < OH * OW) & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        acc += tl.load(x_ptr + plane * H * W + ih * W + iw, mask=ok, other=0.0) * tl.load(w_ptr + c * 9 + tap)
    y = tl.minimum(tl.maximum(acc * 4, 0.0), 6.0)
    tl.store(y_ptr + plane * OH * OW + p, y, mask=p < OH * OW)


class ModelNew(nn.Module):
    def __init__(self, channels, stride):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)
        self.stride = stride

    def forward(self, x):
        b, c, h, w = x.shape
        oh = (h + 2 - 3) // self.stride + 1
        ow = (w + 2 - 3) // self.stride + 1
        y = torch.empty((b, c, oh, ow), device=x.device, dtype=x.dtype)
        block = 256 if oh * ow >= 256 else 16
        depthwise_kernel[(b * c, triton.cdiv(oh * ow, block))](
            x, self.conv.weight, y, c, h, w, oh, ow, self.stride, BLOCK=block
        )
        return y
