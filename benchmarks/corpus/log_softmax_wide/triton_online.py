# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def log_softmax_online(x_ptr, y_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * cols
    y_ptr += row * cols
    # Running maximum and sum, one pair per lane.
    m = tl.full((BLOCK,), float("-inf"), tl.float32)
    s = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + c, mask=c < cols, other=float("-inf"))
        new_m = tl.maximum(m, x)
        # a lane that has seen nothing yet has s = 0 and m = -inf
        scale = tl.where(m == new_m, 1.0, tl.exp(m - new_m))
        term = tl.where(x == float("-inf"), 0.0, tl.exp(x - new_m))
        s = s * scale + term
        m = new_m
    row_max = tl.max(m, axis=0)
    total = tl.sum(s * tl.exp(m - row_max), axis=0)
    shift = row_max + tl.log(total)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + c, mask=c < cols, other=0.0)
        tl.store(y_ptr + c, x - shift, mask=c < cols)


class ModelNew(nn.Module):
    def forward(self, x):
        rows, cols = x.shape
        y = torch.empty_like(x)
        log_softmax_online[(rows,)](x, y, cols, BLOCK=min(2048, triton.next_power_of_2(cols) // 2), num_warps=8)
        return y
