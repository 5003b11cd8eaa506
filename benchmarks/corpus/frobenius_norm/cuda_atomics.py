# expect: correct
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void square_sum(const float* x, float* total, size_t n) {
    __shared__ float warps[8];
    float s = 0.f;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        s += x[i] * x[i];
    }
    for (int o = 16; o > 0; o /= 2) s += __shfl_down_sync(0xffffffff, s, o);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = s;
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0.f;
        for (int w = 0; w < 8; ++w) all += warps[w];
        atomicAdd(total, all);
    }
}

__global__ void scale(const float* x, const float* total, float* y, size_t n) {
    float inverse = rsqrtf(*total);
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        y[i] = x[i] * inverse;
    }
}

torch::Tensor frobenius(torch::Tensor x) {
    auto y = torch::empty_like(x);
    auto total = torch::zeros({1}, x.options());
    size_t n = x.numel();
    int blocks = (int)std::min<size_t>((n + 255) / 256, 1056);
    square_sum<<<blocks, 256>>>(x.data_ptr<float>(), total.data_ptr<float>(), n);
    scale<<<blocks, 256>>>(x.data_ptr<float>(), total.data_ptr<float>(), y.data_ptr<float>(), n);
    return y;
}
"""
ext = load_inline(
    name="frobenius_atomics",
    cpp_sources="torch::Tensor frobenius(torch::Tensor x);",
    cuda_sources=source,
    functions=["frobenius"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.frobenius(x.contiguous())
