# expect: correct
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

constexpr int THREADS = 512;

__device__ float block_sum(float v, float* scratch) {
    scratch[threadIdx.x] = v;
    __syncthreads();
    for (int s = THREADS / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) scratch[threadIdx.x] += scratch[threadIdx.x + s];
        __syncthreads();
    }
    float total = scratch[0];
    __syncthreads();
    return total;
}

// One block a channel does statistics and output.
__global__ void batch_norm_relu(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                                float* __restrict__ y, int batch, int channels, int hw, float eps) {
    __shared__ float scratch[THREADS];
    const int c = blockIdx.x;
    const int count = batch * hw;
    float s = 0.f;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        s += x[((size_t)(i / hw) * channels + c) * hw + i % hw];
    }
    const float mean = block_sum(s, scratch) / count;
    float q = 0.f;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        float d = x[((size_t)(i / hw) * channels + c) * hw + i % hw] - mean;
        q += d * d;
    }
    const float rstd = rsqrtf(block_sum(q, scratch) / count + eps);
    const float scale = w[c] * rstd, shift = b[c] - mean * scale;
    for (int i = threadIdx.x; i < count; i += THREADS) {
        size_t at = ((size_t)(i / hw) * channels + c) * hw + i % hw;
        y[at] = fmaxf(x[at] * scale + shift, 0.f);
    }
}

torch::Tensor batch_norm_relu_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps) {
    auto y = torch::empty_like(x);
    int hw = x.size(2) * x.size(3);
    batch_norm_relu<<<x.size(1), THREADS>>>(x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(),
                                            y.data_ptr<float>(), x.size(0), x.size(1), hw, (float)eps);
    return y;
}
"""
bn_ext = load_inline(
    name="batch_norm_relu_ext",
    cpp_sources=[
        "torch::Tensor batch_norm_relu_forward(torch::Tensor x, torch::Tensor w, torch::Tensor b, double eps);"
    ],
    cuda_sources=[source],
    functions=["batch_norm_relu_forward"],
)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.bn = nn.BatchNorm2d(channels)

    def forward(self, x):
        return bn_ext.batch_norm_relu_forward(x, self.bn.weight, self.bn.bias, self.bn.eps)
