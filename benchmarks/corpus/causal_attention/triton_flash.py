# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def flash_kernel(q_ptr, k_ptr, v_ptr, o_ptr, S, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    head = tl.program_id(1)
    base = head * S * D
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rd = tl.arange(0, D)
    q = tl.load(q_ptr + base + rm[:, None] * D + rd[None, :], mask=rm[:, None] < S, other=0.0)
    m = tl.full((BM,), -1e30, tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    # keys after the block's last query are masked anyway
    for n0 in range(0, tl.minimum((tl.program_id(0) + 1) * BM, S), BN):
        rn = n0 + tl.arange(0, BN)
        k = tl.load(k_ptr + base + rn[None, :] * D + rd[:, None], mask=rn[None, :] < S, other=0.0)
        v = tl.load(v_ptr + base + rn[:, None] * D + rd[None, :], mask=rn[:, None] < S, other=0.0)
        scores = tl.dot(q, k, input_precision="ieee") * scale
        scores = tl.where((rn[None, :] <= rm[:, None]) & (rn[None, :] < S), scores, -1e30)
        new_m = tl.maximum(m, tl.max(scores, axis=1))
        p = tl.exp(scores - new_m[:, None])
        shrink = tl.exp(m - new_m)
        total = total * shrink + tl.sum(p, axis=1)
        acc = acc * shrink[:, None] + tl.dot(p, v, input_precision="ieee")
        m = new_m
    tl.store(o_ptr + base + rm[:, None] * D + rd[None, :], acc / total[:, None], mask=rm[:, None] < S)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        B, H, S, D = q.shape
        out = torch.empty_like(q)
        flash_kernel[(triton.cdiv(S, 16), B * H)](q, k, v, out, S, D**-0.5, BM=16, BN=16, D=D)
        return out
