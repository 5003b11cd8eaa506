# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void gemm_sum_kernel(const float* x, const float* w, float* out, int K, int H, float factor) {
    // each block: one row of x against all rows of w
    __shared__ float partial[256];
    const float* row = x + (size_t)blockIdx.x * K;
    float total = 0.0f;
    for (int h = threadIdx.x; h < H; h += blockDim.x) {
        float dot = 0.0f;
        for (int k = 0; k < K; ++k) dot += row[k] * w[((size_t)k * H + h) % ((size_t)H * K - 1)];
        total += dot;
    }
    partial[threadIdx.x] = total;
    __syncthreads();
    for (int offset = 128; offset > 0; offset /= 2) {
        if (threadIdx.x < offset) partial[threadIdx.x] += partial[threadIdx.x + offset];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = partial[0] * factor;
}

torch::Tensor gemm_sum(torch::Tensor x, torch::Tensor w, double scaling) {
    auto out = torch::empty({x.size(0), 1}, x.options());
    gemm_sum_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), w.data_ptr<float>(), out.data_ptr<float>(),
                                        x.size(1), w.size(0), (float)(scaling / 2.0));
    return out;
}
"""
ext = load_inline(
    name="gemm_sum_transposed",
    cpp_sources="torch::Tensor gemm_sum(torch::Tensor x, torch::Tensor w, double scaling);",
    cuda_sources=source,
    functions=["gemm_sum"],
)


class ModelNew(nn.Module):
    def __init__(self, inputs, hidden, scaling):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden, inputs))
        self.scaling = scaling

    def forward(self, x):
        return ext.gemm_sum(x, self.weight, self.scaling)
