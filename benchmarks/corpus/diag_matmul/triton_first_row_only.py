# expect: incorrect
import torch
import triton
import triton.language as tl


@triton.jit
def scale_rows(a_ptr, b_ptr, c_ptr, m, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    a = tl.load(a_ptr + row)
    b = tl.load(b_ptr + row * m + cols, mask=cols < m, other=0.0)
    tl.store(c_ptr + row * m + cols, a * b, mask=cols < m)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        c = torch.empty_like(b)
        n, m = b.shape
        block = min(triton.next_power_of_2(m), 2048)
        scale_rows[(1, triton.cdiv(m, block))](a, b, c, m, BLOCK=block)
        return c
