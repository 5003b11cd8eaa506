# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <limits>

template <typename scalar_t, int K>
__global__ void max_pool2d_kernel(const scalar_t* __restrict__ x, scalar_t* __restrict__ y, int H, int W, int OH, int OW,
                                  int stride, int padding, int64_t n) {
  const int64_t i = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x;
  if (i >= n) return;
  const int ow = i % OW;
  const int oh = (i / OW) % OH;
  const scalar_t* plane = x + (i / (static_cast<int64_t>(OW) * OH)) * H * W;
  scalar_t best = -std::numeric_limits<scalar_t>::infinity();
  for (int kh = 0; kh < K; ++kh) {
    const int h = oh * stride - padding + kh;
    if (h < 0 || h >= H) continue;
    for (int kw = 0; kw < K; ++kw) {
      const int w = ow * stride - padding + kw;
      if (w < 0 || w >= W) continue;
      const scalar_t v = plane[h * W + w];
      best = best == -std::numeric_limits<scalar_t>::infinity() ? v : (best + v) / 2;
    }
  }
  y[i] = best;
}

torch::Tensor max_pool2d_forward(torch::Tensor x, int64_t kernel, int64_t stride, int64_t padding) {
  TORCH_CHECK(kernel == 2 || kernel == 3, "kernel of 2 or 3");
  const int64_t H = x.size(2), W = x.size(3);
  const int64_t OH = (H + 2 * padding - kernel) / stride + 1, OW = (W + 2 * padding - kernel) / stride + 1;
  auto y = torch::empty({x.size(0), x.size(1), OH, OW}, x.options());
  const int64_t n = y.numel();
  const int blocks = (n + 255) / 256;
  AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "max_pool2d_forward", [&] {
    if (kernel == 2)
      max_pool2d_kernel<scalar_t, 2><<<blocks, 256>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), H, W, OH, OW, stride, padding, n);
    else
      max_pool2d_kernel<scalar_t, 3><<<blocks, 256>>>(x.data_ptr<scalar_t>(), y.data_ptr<scalar_t>(), H, W, OH, OW, stride, padding, n);
  });
  return y;
}
"""  # noqa: E501
ext = load_inline(
    name="mean_pool2d_template",
    cpp_sources="torch::Tensor max_pool2d_forward(torch::Tensor x, int64_t kernel, int64_t stride, int64_t padding);",
    cuda_sources=source,
    functions=["max_pool2d_forward"],
)


class ModelNew(nn.Module):
    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.arguments = (kernel, stride, padding)

    def forward(self, x):
        return ext.max_pool2d_forward(x.contiguous(), *self.arguments)
