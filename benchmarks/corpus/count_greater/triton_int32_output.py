# expect: incorrect
import torch
import triton
import triton.language as tl


@triton.jit
def count_kernel(x_ptr, y_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        mask = c < cols
        x = tl.load(x_ptr + row * cols + c, mask=mask, other=0.0)
        y = tl.load(y_ptr + row * cols + c, mask=mask, other=0.0)
        total += ((x > y) & mask).to(tl.int32)
    tl.store(out_ptr + row, tl.sum(total, axis=0))


class ModelNew(torch.nn.Module):
    def forward(self, x, y):
        rows, cols = x.shape
        out = torch.empty(rows, dtype=torch.int32, device=x.device)
        count_kernel[(rows,)](x, y, out, cols, BLOCK=256)
        return out
