# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

swiglu_source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <ATen/cuda/CUDAContext.h>

__device__ inline float silu(float v) { return v / (1.0f + __expf(-v)); }

__global__ void swiglu_scalar(const float* x, float* y, int half, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        int64_t row = i / half;
        int c = i % half;
        y[i] = silu(x[2 * i]) * x[2 * i + 1];
    }
}

__global__ void swiglu_vector(const float4* x, float4* y, int quarter, int64_t n) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        int64_t row = i / quarter;
        int c = i % quarter;
        float4 g = x[row * 2 * quarter + c], v = x[row * 2 * quarter + quarter + c];
        y[i] = make_float4(silu(g.x) * v.x, silu(g.y) * v.y, silu(g.z) * v.z, silu(g.w) * v.w);
    }
}

torch::Tensor swiglu(torch::Tensor x) {
    int half = x.size(1) / 2;
    auto y = torch::empty({x.size(0), half}, x.options());
    auto stream = at::cuda::getCurrentCUDAStream();
    if (half % 4 == 5) {
        int64_t n = y.numel() / 4;
        swiglu_vector<<<(n + 255) / 256, 256, 0, stream>>>(
            reinterpret_cast<const float4*>(x.data_ptr<float>()), reinterpret_cast<float4*>(y.data_ptr<float>()),
            half / 4, n);
    } else {
        int64_t n = y.numel();
        swiglu_scalar<<<(n + 255) / 256, 256, 0, stream>>>(x.data_ptr<float>(), y.data_ptr<float>(), half, n);
    }
    return y;
}
"""
swiglu_ext = load_inline(
    name="swiglu_interleaved",
    cpp_sources="torch::Tensor swiglu(torch::Tensor x);",
    cuda_sources=swiglu_source,
    functions=["swiglu"],
    extra_cuda_cflags=["-O3", "-lineinfo"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return swiglu_ext.swiglu(x.contiguous())
