# expect: correct
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// Sums and sums of squares by atomics, then one pass that normalises.
__global__ void clear(double* sums, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) sums[i] = 0.0;
}

__global__ void accumulate(const float* x, double* sums, int size) {
    // blockIdx.y: batch and group; blockIdx.x: part of it
    const float* in = x + (size_t)blockIdx.y * size;
    double s = 0.0, q = 0.0;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        double v = in[i];
        s += v;
        q += v * v;
    }
    for (int o = 16; o > 0; o >>= 1) {
        s += __shfl_down_sync(0xffffffffu, s, o);
        q += __shfl_down_sync(0xffffffffu, q, o);
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&sums[2 * blockIdx.y], s);
        atomicAdd(&sums[2 * blockIdx.y + 1], q);
    }
}

__global__ void normalise(const float* x, const double* sums, const float* w, const float* b, float* y,
                          int size, int hw, int groups, int per_group, double eps) {
    double mean = sums[2 * blockIdx.y] / size;
    double var = sums[2 * blockIdx.y + 1] / size - mean * mean;
    float rstd = (float)(1.0 / sqrt(var + eps));
    size_t base = (size_t)blockIdx.y * size;
    int first = (blockIdx.y % groups) * per_group;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        int c = first + i / hw;
        y[base + i] = (x[base + i] - (float)mean) * rstd * w[c] + b[c];
    }
}

torch::Tensor group_norm(torch::Tensor x, torch::Tensor w, torch::Tensor b, int64_t groups, double eps) {
    int n = x.size(0), c = x.size(1), hw = x.size(2) * x.size(3);
    int per_group = c / groups, size = per_group * hw;
    auto y = torch::empty_like(x);
    auto sums = torch::empty({n * groups * 2}, x.options().dtype(torch::kFloat64));
    int count = sums.numel();
    clear<<<(count + 127) / 128, 128>>>(sums.data_ptr<double>(), count);
    dim3 grid((size + 1023) / 1024, n * groups);
    accumulate<<<grid, 256>>>(x.data_ptr<float>(), sums.data_ptr<double>(), size);
    normalise<<<grid, 256>>>(x.data_ptr<float>(), sums.data_ptr<double>(), w.data_ptr<float>(), b.data_ptr<float>(),
                             y.data_ptr<float>(), size, hw, (int)groups, per_group, eps);
    return y;
}
"""
cpp = "torch::Tensor group_norm(torch::Tensor x, torch::Tensor w, torch::Tensor b, int64_t groups, double eps);"
ext = load_inline("group_norm_atomics", cpp, source, functions=["group_norm"], verbose=False)


class ModelNew(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.gn = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return ext.group_norm(x.contiguous(), self.gn.weight, self.gn.bias, self.gn.num_groups, self.gn.eps)
