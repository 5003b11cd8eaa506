# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// The block that finishes last adds up what all blocks have left.
__global__ void mse_kernel(const float* __restrict__ p, const float* __restrict__ t, double* __restrict__ parts,
                           unsigned int* __restrict__ done, float* __restrict__ out, size_t n) {
    __shared__ double shared[256];
    __shared__ bool last;
    double s = 0.0;
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        float d = p[i] - t[i];
        s += (double)d * d;
    }
    shared[threadIdx.x] = s;
    __syncthreads();
    for (int w = 128; w > 0; w >>= 1) {
        if (threadIdx.x < w) shared[threadIdx.x] += shared[threadIdx.x + w];
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        parts[blockIdx.x] = shared[0];
        __threadfence();
        last = atomicAdd(done, 1u) == gridDim.x - 1;
    }
    __syncthreads();
    if (last && threadIdx.x == 0) {
        double total = 0.0;
        for (unsigned b = 0; b < gridDim.x / 2; ++b) total += ((volatile double*)parts)[b];
        *out = (float)(total / n);
    }
}

torch::Tensor mse_forward(torch::Tensor p, torch::Tensor t) {
    size_t n = p.numel();
    int blocks = (int)std::min<size_t>((n + 255) / 256, 528);
    auto parts = torch::empty({blocks}, p.options().dtype(torch::kFloat64));
    auto done = torch::zeros({1}, p.options().dtype(torch::kInt32));
    auto out = torch::empty({}, p.options());
    mse_kernel<<<blocks, 256>>>(p.data_ptr<float>(), t.data_ptr<float>(), parts.data_ptr<double>(),
                                reinterpret_cast<unsigned int*>(done.data_ptr<int>()), out.data_ptr<float>(), n);
    return out;
}
"""
ext = load_inline(
    name="mse_half_the_blocks",
    cpp_sources="torch::Tensor mse_forward(torch::Tensor p, torch::Tensor t);",
    cuda_sources=source,
    functions=["mse_forward"],
)


class ModelNew(nn.Module):
    def forward(self, predictions, targets):
        return ext.mse_forward(predictions.contiguous(), targets.contiguous())
