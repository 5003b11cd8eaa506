# expect: incorrect
import torch
import triton
import triton.language as tl


@triton.jit
def gather_scale_kernel(x_ptr, index_ptr, weight_ptr, out_ptr, cols, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    source = row.to(tl.int64)
    weight = tl.load(weight_ptr + row)
    for start in range(0, cols, BLOCK):
        c = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + source * cols + c, mask=c < cols, other=0.0)
        tl.store(out_ptr + row * cols + c, x * weight, mask=c < cols)


class ModelNew(torch.nn.Module):
    def forward(self, x, index, weight):
        out = torch.empty((index.shape[0], x.shape[1]), device=x.device, dtype=x.dtype)
        gather_scale_kernel[(index.shape[0],)](x, index, weight, out, x.shape[1], BLOCK=1024 if x.shape[1] > 64 else 16)
        return out
