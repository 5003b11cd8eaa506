# expect: correct
import torch
import triton
import triton.language as tl


@triton.jit
def relu_persistent(x_ptr, y_ptr, n, num_programs, BLOCK: tl.constexpr):
    # Every program walks over the tensor with a stride of the whole grid.
    start = tl.program_id(0) * BLOCK
    for base in range(start, n, num_programs * BLOCK):
        offs = base + tl.arange(0, BLOCK)
        m = offs < n
        v = tl.load(x_ptr + offs, mask=m)
        tl.store(y_ptr + offs, tl.where(v > 0, v, 0.0), mask=m)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        programs = min(triton.cdiv(n, 512), 132 * 8)
        relu_persistent[(programs,)](x, out, n, programs, BLOCK=512)
        return out
