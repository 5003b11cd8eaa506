# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def avg_pool1d_kernel(x_ptr, y_ptr, length, out_length, kernel, stride, padding, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    o = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    valid = o < out_length
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    count = tl.zeros((BLOCK,), dtype=tl.float32)
    for k in range(kernel):
        i = o * stride - padding + k
        acc += tl.load(x_ptr + row * length + i, mask=valid & (i >= 0) & (i < length), other=0.0)
        count += tl.where((i >= 0) & (i < length), 1.0, 0.0)
    tl.store(y_ptr + row * out_length + o, acc / count, mask=valid)


class ModelNew(nn.Module):
    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.kernel = kernel
        self.stride = stride
        self.padding = padding

    def forward(self, x):
        b, c, length = x.shape
        out_length = (length + 2 * self.padding - self.kernel) // self.stride + 1
        y = torch.empty((b, c, out_length), device=x.device, dtype=x.dtype)
        BLOCK = 1024 if out_length >= 1024 else 16
        grid = (b * c, triton.cdiv(out_length, BLOCK))
        avg_pool1d_kernel[grid](x, y, length, out_length, self.kernel, self.stride, self.padding, BLOCK=BLOCK)
        return y
