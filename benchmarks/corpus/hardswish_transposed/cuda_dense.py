# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

# Takes both tensors for dense ones in row-major order.
source = r"""
#include <torch/extension.h>
__global__ void k(const float* x, const float* y, float* o, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) o[i] = x[i] * fminf(fmaxf(x[i] + 3.f, 0.f), 6.f) / 6.f + y[i];
}
torch::Tensor hardswish_dense(torch::Tensor x, torch::Tensor y) {
    auto o = torch::empty_like(y);
    int n = x.numel();
    k<<<(n + 511) / 512, 512>>>(x.data_ptr<float>(), y.data_ptr<float>(), o.data_ptr<float>(), n);
    return o;
}
"""
ext = load_inline("hs_dense", "torch::Tensor hardswish_dense(torch::Tensor x, torch::Tensor y);", source, ["hardswish_dense"])


class ModelNew(nn.Module):
    def forward(self, x, y):
        return ext.hardswish_dense(x, y)
