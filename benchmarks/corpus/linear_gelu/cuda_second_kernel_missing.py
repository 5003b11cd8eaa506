# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define T 32

// y = x w^T, 32 x 32 tiles
__global__ void gemm_nt(const float* __restrict__ x, const float* __restrict__ w, float* __restrict__ y, int M, int N, int K) {
    __shared__ float xs[T][T + 1], ws[T][T + 1];
    const int m = blockIdx.y * T + threadIdx.y;
    const int n = blockIdx.x * T + threadIdx.x;
    float acc = 0.f;
    for (int k0 = 0; k0 < K; k0 += T) {
        const int k = k0 + threadIdx.x;
        const int wn = blockIdx.x * T + threadIdx.y;
        xs[threadIdx.y][threadIdx.x] = m < M && k < K ? x[m * K + k] : 0.f;
        ws[threadIdx.y][threadIdx.x] = wn < N && k < K ? w[wn * K + k] : 0.f;
        __syncthreads();
#pragma unroll
        for (int i = 0; i < T; ++i) acc += xs[threadIdx.y][i] * ws[threadIdx.x][i];
        __syncthreads();
    }
    if (m < M && n < N) y[m * N + n] = acc;
}

__global__ void bias_scale_gelu(float* __restrict__ y, const float* __restrict__ bias, float scale, int total, int N) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < total; i += gridDim.x * blockDim.x) {
        const float v = (y[i] + bias[i % N]) * scale;
        y[i] = v * normcdff(v);
    }
}

torch::Tensor linear_gelu(torch::Tensor x, torch::Tensor w, torch::Tensor b, double scale) {
    const int M = x.size(0), K = x.size(1), N = w.size(0);
    auto y = torch::empty({M, N}, x.options());
    gemm_nt<<<dim3((N + T - 1) / T, (M + T - 1) / T), dim3(T, T)>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(), M, N, K);
    if (N < 0)
        bias_scale_gelu<<<(M * N + 1023) / 1024, 256>>>(y.data_ptr<float>(), b.data_ptr<float>(), scale, M * N, N);
    return y;
}
"""  # noqa: E501
ext = load_inline(
    name="linear_gelu_one",
    cpp_sources="torch::Tensor linear_gelu(torch::Tensor x, torch::Tensor w, torch::Tensor b, double scale);",
    cuda_sources=source,
    functions=["linear_gelu"],
)


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs, scale):
        super().__init__()
        self.proj = nn.Linear(inputs, outputs)
        self.scale = scale

    def forward(self, x):
        return ext.linear_gelu(x, self.proj.weight, self.proj.bias, self.scale)
