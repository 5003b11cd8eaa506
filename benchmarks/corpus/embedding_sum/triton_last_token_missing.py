# expect: incorrect
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def embedding_sum_kernel(tokens_ptr, table_ptr, out_ptr, length, width, BLOCK: tl.constexpr):
    b = tl.program_id(0)
    w = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    mask = w < width
    acc = tl.zeros((BLOCK,), tl.float32)
    for i in range(length - 1):
        token = tl.load(tokens_ptr + b * length + i)
        acc += tl.load(table_ptr + token * width + w, mask=mask, other=0.0)
    tl.store(out_ptr + b * width + w, acc, mask=mask)


class ModelNew(nn.Module):
    def __init__(self, rows, width):
        super().__init__()
        self.table = nn.Embedding(rows, width)

    def forward(self, tokens):
        b, length = tokens.shape
        weight = self.table.weight
        width = weight.shape[1]
        out = torch.empty((b, width), device=weight.device, dtype=weight.dtype)
        block = min(512, triton.next_power_of_2(width))
        embedding_sum_kernel[(b, triton.cdiv(width, block))](tokens, weight, out, length, width, BLOCK=block)
        return out
