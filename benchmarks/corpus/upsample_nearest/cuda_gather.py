# expect: correct
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = """
#include <torch/extension.h>
__global__ void upsample(const float* x, float* y, int H, int W, int scale, int64_t n) {
  int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
  if (i >= n) return;
  int OW = W * scale, OH = H * scale;
  int w = (i % OW) / scale;
  int h = (i / OW % OH) / scale;
  int64_t plane = i / ((int64_t)OW * OH);
  y[i] = x[(plane * H + h) * W + w];
}
torch::Tensor upsample_forward(torch::Tensor x, int64_t scale) {
  int H = x.size(2), W = x.size(3);
  auto y = torch::empty({x.size(0), x.size(1), H * scale, W * scale}, x.options());
  int64_t n = y.numel();
  upsample<<<(n + 511) / 512, 512>>>(x.data_ptr<float>(), y.data_ptr<float>(), H, W, scale, n);
  return y;
}
"""
ext = load_inline("upsample_gather", "torch::Tensor upsample_forward(torch::Tensor x, int64_t scale);", src, functions=["upsample_forward"])  # noqa: E501


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return ext.upsample_forward(x.contiguous(), self.scale)
