# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// Hillis-Steele scan of 256 elements at a time with a carry.
__global__ void cumsum_kernel(const float* __restrict__ x, float* __restrict__ y, int cols) {
    __shared__ float a[2][256];
    const float* in = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;
    float carry = 0.f;
    const int t = threadIdx.x;
    for (int base = 0; base < cols; base += 256) {
        int c = base + t;
        int from = 0;
        a[0][t] = c < cols ? in[c] : 0.f;
        __syncthreads();
        for (int step = 1; step < 256; step *= 2) {
            int to = 1 - from;
            a[to][t] = t >= step ? a[from][t] + a[from][t - step] : a[from][t];
            __syncthreads();
            from = to;
        }
        if (c < cols) out[c] = a[from][t] + carry - in[c];
        carry += a[from][255];
        __syncthreads();
    }
}

torch::Tensor cumsum_forward(torch::Tensor x) {
    auto y = torch::empty_like(x);
    cumsum_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1));
    return y;
}
"""
ext = load_inline(
    name="cumsum_exclusive",
    cpp_sources="torch::Tensor cumsum_forward(torch::Tensor x);",
    cuda_sources=source,
    functions=["cumsum_forward"],
)


class ModelNew(nn.Module):
    def forward(self, x):
        return ext.cumsum_forward(x.contiguous())
