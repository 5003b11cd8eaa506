# expect: incorrect
import torch
import triton
import triton.language as tl


@triton.jit
def gelu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < n
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    # 0.5 * (1 + tanh(z)) is the sigmoid of 2z
    z = 0.7071067811865476 * (x + 0.044715 * x * x * x)
    y = x * tl.sigmoid(2.0 * z)
    tl.store(y_ptr + offs, y, mask=mask)


class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)  # noqa: E731
        gelu_kernel[grid](x, y, x.numel(), BLOCK=2048, num_warps=8)
        return y
