# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


# Uses the running statistics, which is what the module would do in evaluation mode.
@triton.jit
def bn_eval_kernel(x_ptr, mean_ptr, var_ptr, w_ptr, b_ptr, y_ptr, channels, hw, n, eps, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    c = (i // hw) % channels
    mean = tl.load(mean_ptr + c, mask=mask, other=0.0)
    var = tl.load(var_ptr + c, mask=mask, other=1.0)
    x = tl.load(x_ptr + i, mask=mask, other=0.0)
    y = (x - mean) / tl.sqrt(var + eps)
    y = y * tl.load(w_ptr + c, mask=mask, other=0.0) + tl.load(b_ptr + c, mask=mask, other=0.0)
    tl.store(y_ptr + i, tl.maximum(y, 0.0), mask=mask)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = torch.empty_like(x)
        n = x.numel()
        bn = self.bn
        bn_eval_kernel[(triton.cdiv(n, 1024),)](
            x, bn.running_mean, bn.running_var, bn.weight, bn.bias, y, x.shape[1], x.shape[2] * x.shape[3], n, bn.eps,
            BLOCK=1024,
        )
        return y
