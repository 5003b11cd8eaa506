# expect: incorrect|correct
# why: wrong at small sizes; the bias is inside the tolerance of the sum at the full size
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def linear_relu_sum_kernel(
    x_ptr, w_ptr, b_ptr, out_ptr, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr
):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((BM,), tl.float32)
    for n0 in range(0, N, BN):
        rn = n0 + tl.arange(0, BN)
        acc = tl.zeros((BM, BN), tl.float32)
        for k0 in range(0, K, BK):
            rk = k0 + tl.arange(0, BK)
            x = tl.load(x_ptr + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
            # the weight is (N, K): loaded as its transpose
            w = tl.load(w_ptr + rn[None, :] * K + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < K), other=0.0)
            acc += tl.dot(x, w, input_precision="ieee")
        bias = tl.load(b_ptr + rn, mask=rn < N, other=0.0)
        acc = tl.maximum(acc, 0.0)
        total += tl.sum(acc, axis=1)
    tl.store(out_ptr + rm, total, mask=rm < M)


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)

    def forward(self, x):
        M, K = x.shape
        N = self.fc.weight.shape[0]
        out = torch.empty((M, 1), device=x.device, dtype=x.dtype)
        linear_relu_sum_kernel[(triton.cdiv(M, 16),)](
            x, self.fc.weight, self.fc.bias, out, M, N, K, BM=16, BN=32, BK=32
        )
        return out
