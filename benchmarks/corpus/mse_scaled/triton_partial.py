# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def squared_error_partial(p_ptr, t_ptr, part_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    i = pid.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    d = tl.load(p_ptr + i, mask=mask, other=0.0) - tl.load(t_ptr + i, mask=mask, other=0.0)
    tl.store(part_ptr + pid, tl.sum(d * d, axis=0))


@triton.jit
def mean_of_parts(part_ptr, out_ptr, parts, n, BLOCK: tl.constexpr):
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, parts, BLOCK):
        i = start + tl.arange(0, BLOCK)
        acc += tl.load(part_ptr + i, mask=i < parts, other=0.0)
    tl.store(out_ptr, tl.sum(acc, axis=0) / n)


class ModelNew(nn.Module):
    def forward(self, predictions, targets):
        n = predictions.numel()
        BLOCK = 4096 if n > 100000 else 256
        parts = triton.cdiv(n, BLOCK)
        partial = torch.empty(parts, device=predictions.device, dtype=torch.float32)
        out = torch.empty((), device=predictions.device, dtype=torch.float32)
        squared_error_partial[(parts,)](predictions, targets, partial, n, BLOCK=BLOCK)
        mean_of_parts[(1,)](partial, out, parts, n, BLOCK=1024)
        return out
