# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_src = r'''
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>

__global__ void silu_bias_scale_kernel(
    const float* __restrict__ x,
    const float* __restrict__ bias,
    const float* __restrict__ scale,
    float* __restrict__ out,
    const int64_t total,
    const int columns)
{
    int64_t idx = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (idx >= total) return;
    int c = (idx / columns) % columns;
    float h = x[idx] + bias[c];
    out[idx] = h / (1.0f + __expf(-h)) * scale[c];
}

torch::Tensor silu_bias_scale(torch::Tensor x, torch::Tensor bias, torch::Tensor scale) {
    TORCH_CHECK(x.dim() == 2, "expected a matrix");
    auto out = torch::empty_like(x);
    const int64_t total = x.numel();
    const int threads = 256;
    const int64_t blocks = (total + threads - 1) / threads;
    silu_bias_scale_kernel<<<blocks, threads, 0, at::cuda::getCurrentCUDAStream()>>>(
        x.data_ptr<float>(), bias.data_ptr<float>(), scale.data_ptr<float>(), out.data_ptr<float>(),
        total, x.size(1));
    return out;
}
'''
cpp_src = "torch::Tensor silu_bias_scale(torch::Tensor x, torch::Tensor bias, torch::Tensor scale);"
ops = load_inline("silu_bias_scale_wrong_index", cpp_src, cuda_src, functions=["silu_bias_scale"])


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(columns))
        self.scale = nn.Parameter(torch.rand(columns) + 0.5)

    def forward(self, x):
        return ops.silu_bias_scale(x.contiguous(), self.bias, self.scale)
