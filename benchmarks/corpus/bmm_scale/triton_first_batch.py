# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def bmm_kernel(q_ptr, k_ptr, o_ptr, M, N, K, scale, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    b = tl.program_id(2)
    q_ptr += b * M * K

    o_ptr += b * M * N
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        rk = start + tl.arange(0, BK)
        q = tl.load(q_ptr + rm[:, None] * K + rk[None, :], mask=(rm[:, None] < M) & (rk[None, :] < K), other=0.0)
        kt = tl.load(k_ptr + rn[None, :] * K + rk[:, None], mask=(rn[None, :] < N) & (rk[:, None] < K), other=0.0)
        acc = tl.dot(q, kt, acc, input_precision="ieee")
    tl.store(o_ptr + rm[:, None] * N + rn[None, :], acc * scale, mask=(rm[:, None] < M) & (rn[None, :] < N))


class ModelNew(nn.Module):
    def forward(self, q, k):
        q, k = q.contiguous(), k.contiguous()
        B, M, K = q.shape
        N = k.shape[1]
        out = torch.empty((B, M, N), device=q.device, dtype=q.dtype)
        grid = (triton.cdiv(M, 32), triton.cdiv(N, 32), B)
        bmm_kernel[grid](q, k, out, M, N, K, K**-0.5, BM=32, BN=32, BK=32)
        return out
