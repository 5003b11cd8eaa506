# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def partial_sums(x_ptr, part_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(part_ptr + pid, tl.sum(x * x, axis=0))


@triton.jit
def total_norm(part_ptr, norm_ptr, parts, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, parts, BLOCK):
        i = start + tl.arange(0, BLOCK)
        acc += tl.load(part_ptr + i, mask=i < parts, other=0.0)
    tl.store(norm_ptr, tl.sqrt(tl.sum(acc, axis=0)))


@triton.jit
def divide(x_ptr, norm_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    norm = tl.load(norm_ptr)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0.0) / norm, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        n = x.numel()
        BLOCK = 4096 if n >= 4096 else 256
        parts = triton.cdiv(n, BLOCK)
        partial = torch.empty(parts, device=x.device, dtype=torch.float32)
        norm = torch.empty(1, device=x.device, dtype=torch.float32)
        y = torch.empty_like(x)
        partial_sums[(parts,)](x, partial, n, BLOCK=BLOCK)
        total_norm[(1,)](partial, norm, parts, BLOCK=1024)
        divide[(parts,)](x, norm, y, n, BLOCK=BLOCK)
        return y
