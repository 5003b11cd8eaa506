# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cuda_bf16.h>

#define T 16

__global__ void linear_silu(const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ w,
                            const __nv_bfloat16* __restrict__ b, __nv_bfloat16* __restrict__ y, int M, int N, int K) {
    __shared__ float xs[T][T], ws[T][T + 1];
    int m = blockIdx.y * T + threadIdx.y;
    int n = blockIdx.x * T + threadIdx.x;
    int wn = blockIdx.x * T + threadIdx.y;
    float acc = 0.f;
    for (int k0 = 0; k0 < K; k0 += T) {
        int k = k0 + threadIdx.x;
        xs[threadIdx.y][threadIdx.x] = (m < M && k < K) ? __bfloat162float(x[(size_t)m * K + k]) : 0.f;
        ws[threadIdx.y][threadIdx.x] = (wn < N && k < K) ? __bfloat162float(w[(size_t)wn * K + k]) : 0.f;
        __syncthreads();
        for (int i = 0; i < T; ++i) acc += xs[threadIdx.y][i] * ws[threadIdx.x][i];
        __syncthreads();
    }
    if (m < M && n < N) {
        acc += __bfloat162float(b[n]);
        y[(size_t)m * N + n] = __float2bfloat16(acc / (1.f + expf(-acc)));
    }
}

torch::Tensor linear_silu_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    int M = x.size(0), K = x.size(1), N = w.size(0);
    auto y = torch::zeros({M, N}, x.options().dtype(torch::kFloat32));
    using bf16 = __nv_bfloat16;
    linear_silu<<<dim3((N + T - 1) / T, (M + T - 1) / T), dim3(T, T)>>>(
        reinterpret_cast<const bf16*>(x.data_ptr<at::BFloat16>()),
        reinterpret_cast<const bf16*>(w.data_ptr<at::BFloat16>()),
        reinterpret_cast<const bf16*>(b.data_ptr<at::BFloat16>()),
        reinterpret_cast<bf16*>(y.data_ptr<float>()), M, N, K);
    return y;
}
"""
ext = load_inline(
    name="linear_silu_float_out",
    cpp_sources="torch::Tensor linear_silu_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b);",
    cuda_sources=source,
    functions=["linear_silu_forward"],
)


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs, dtype=torch.bfloat16)

    def forward(self, x):
        return ext.linear_silu_forward(x, self.fc.weight, self.fc.bias)
