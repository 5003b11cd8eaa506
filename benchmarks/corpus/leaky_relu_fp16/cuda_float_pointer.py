# expect: runtime_error
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
// Written for float although the task's tensors are half: data_ptr refuses.
__global__ void leaky(const float* x, float* y, float slope, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] > 0 ? x[i] : slope * x[i];
}
torch::Tensor leaky_f32(torch::Tensor x, double slope) {
    auto y = torch::empty_like(x);
    int n = x.numel();
    leaky<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), slope, n);
    return y;
}
"""
ext = load_inline("leaky_f32_ext", "torch::Tensor leaky_f32(torch::Tensor x, double slope);", source, ["leaky_f32"])


class ModelNew(nn.Module):
    def __init__(self, slope):
        super().__init__()
        self.slope = slope

    def forward(self, x):
        return ext.leaky_f32(x, self.slope)
