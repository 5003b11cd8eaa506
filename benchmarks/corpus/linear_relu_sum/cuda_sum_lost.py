# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// A block keeps its row of x in shared memory; each warp goes through output features.
__global__ void linear_relu_sum(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ bias,
                                float* __restrict__ out, int K, int N) {
    extern __shared__ float row[];
    __shared__ float sums[8];
    for (int k = threadIdx.x; k < K; k += blockDim.x) row[k] = x[(size_t)blockIdx.x * K + k];
    __syncthreads();
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    float total = 0.f;
    for (int n = warp; n < N; n += warps) {
        float dot = 0.f;
        for (int k = lane; k < K; k += 32) dot += row[k] * w[(size_t)n * K + k];
        for (int o = 16; o > 0; o >>= 1) dot += __shfl_xor_sync(0xffffffffu, dot, o);
        total += fmaxf(dot + bias[n], 0.f);
    }
    if (lane == 0) sums[warp] = total;
    __syncthreads();
    if (threadIdx.x == 0) {
        float all = 0.f;
        for (int i = 1; i < warps; ++i) all += sums[i];
        out[blockIdx.x] = all;
    }
}

torch::Tensor linear_relu_sum_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    const int M = x.size(0), K = x.size(1), N = w.size(0);
    auto out = torch::empty({M, 1}, x.options());
    linear_relu_sum<<<M, 256, K * sizeof(float)>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), out.data_ptr<float>(), K, N);
    return out;
}
"""
cpp = "torch::Tensor linear_relu_sum_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b);"
ext = load_inline(name="linear_relu_sum_lost", cpp_sources=cpp, cuda_sources=source, functions=["linear_relu_sum_forward"])


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs)

    def forward(self, x):
        return ext.linear_relu_sum_forward(x.contiguous(), self.fc.weight, self.fc.bias)
