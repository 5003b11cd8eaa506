# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda = """
#include <torch/extension.h>
__global__ void mean_middle(const float* __restrict__ x, float* __restrict__ y, int B, int D, int C) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= B * C) return;
    int b = i / C;
    int c = i - b * C;
    const float* p = x + (long)b * D * C + c;
    float sum = 0.0f;
    #pragma unroll 4
    for (int d = 0; d < D; d++) {
        sum += p[(long)d * C];
    }
    y[i] = sum / (float)D;
}
torch::Tensor mean_middle_forward(torch::Tensor x) {
    auto xc = x.contiguous();
    int B = xc.size(0), D = xc.size(1), C = xc.size(2);
    auto y = torch::empty({B, 1, C}, xc.options());
    mean_middle<<<(B * C + 127) / 128, 128>>>(xc.data_ptr<float>(), y.data_ptr<float>(), B, D, C);
    return y;
}
"""
ext = load_inline(
    name="mean_middle_keepdim",
    cpp_sources="torch::Tensor mean_middle_forward(torch::Tensor x);",
    cuda_sources=cuda,
    functions=["mean_middle_forward"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.mean_middle_forward(x)
