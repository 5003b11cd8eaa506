# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def weight_columns(w_ptr, s_ptr, H, K, BH: tl.constexpr, BK: tl.constexpr):
    # The sum over the product's columns is a product with the sum of the weight's rows.
    k = tl.program_id(0) * BK + tl.arange(0, BK)
    acc = tl.zeros((BH, BK), tl.float32)
    for h0 in range(0, H, BH):
        h = h0 + tl.arange(0, BH)
        acc += tl.load(w_ptr + h[:, None] * K + k[None, :], mask=(h[:, None] < H) & (k[None, :] < K), other=0.0)
    tl.store(s_ptr + k, tl.sum(acc, axis=0), mask=k < K)


@triton.jit
def row_dot(x_ptr, s_ptr, y_ptr, K, factor, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k0 in range(0, K, BLOCK):
        k = k0 + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * K + k, mask=k < K, other=0.0)
        acc += x * tl.load(s_ptr + k, mask=k < K, other=0.0)
    tl.store(y_ptr + row, tl.sum(acc, axis=0) * factor)


class ModelNew(nn.Module):
    def __init__(self, inputs, hidden, scaling):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, inputs))
        self.scaling = scaling

    def forward(self, x):
        rows, K = x.shape
        H = self.weight.shape[0]
        sums = torch.empty(K, device=x.device, dtype=x.dtype)
        y = torch.empty((rows, 1), device=x.device, dtype=x.dtype)
        weight_columns[(triton.cdiv(K, 32),)](self.weight, sums, H, K, BH=32, BK=32)
        row_dot[(rows,)](x, sums, y, K, self.scaling / 2, BLOCK=256 if K >= 256 else 32)
        return y
