# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cuda_source = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>

// Mean and M2 of two parts combine to those of the whole (Chan's update).
struct Moments {
    float mean, m2, count;
};

__device__ Moments combine(Moments a, Moments b) {
    float count = a.count + b.count;
    if (count == 0.f) return a;
    float delta = b.mean - a.mean;
    Moments c;
    c.count = count;
    c.mean = a.mean + delta * b.count / count;
    c.m2 = a.m2 + b.m2 + delta * delta * a.count * b.count / count;
    return c;
}

__global__ void layer_norm_kernel(const float* __restrict__ x, const float* __restrict__ gamma,
                                  const float* __restrict__ beta, float* __restrict__ y, int cols, float eps) {
    __shared__ float means[32], m2s[32], counts[32];
    const float* in = x + (size_t)blockIdx.x * cols;
    Moments m = {0.f, 0.f, 0.f};
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        float v = in[c];
        m.count += 1.f;
        float delta = v - m.mean;
        m.mean += delta / m.count;
        m.m2 += delta * (v - m.mean);
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        Moments o;
        o.mean = __shfl_xor_sync(0xffffffff, m.mean, offset);
        o.m2 = __shfl_xor_sync(0xffffffff, m.m2, offset);
        o.count = __shfl_xor_sync(0xffffffff, m.count, offset);
        m = combine(m, o);
    }
    int warp = threadIdx.x / 32;
    if (threadIdx.x % 32 == 0) {
        means[warp] = m.mean;
        m2s[warp] = m.m2;
        counts[warp] = m.count;
    }
    __syncthreads();
    Moments total = {means[0], m2s[0], counts[0]};
    for (int w = 1; w < blockDim.x / 32; ++w) {
        Moments o = {means[w], m2s[w], counts[w]};
        total = combine(total, o);
    }
    float rstd = rsqrtf(total.m2 / total.count + eps);
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        y[(size_t)blockIdx.x * cols + c] = (in[c] - total.mean) * rstd * gamma[c];
    }
}

torch::Tensor layer_norm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps) {
    auto y = torch::empty_like(x);
    layer_norm_kernel<<<x.size(0), 256>>>(x.data_ptr<float>(), gamma.data_ptr<float>(), beta.data_ptr<float>(),
                                          y.data_ptr<float>(), x.size(1), (float)eps);
    return y;
}
"""
layer_norm_ext = load_inline(
    name="layer_norm_no_beta",
    cpp_sources=(
        "torch::Tensor layer_norm_cuda(torch::Tensor x, torch::Tensor gamma, torch::Tensor beta, double eps);"
    ),
    cuda_sources=cuda_source,
    functions=["layer_norm_cuda"],
)


class ModelNew(nn.Module):
    def __init__(self, columns):
        super().__init__()
        self.norm = nn.LayerNorm(columns)

    def forward(self, x):
        return layer_norm_ext.layer_norm_cuda(x, self.norm.weight, self.norm.bias, self.norm.eps)
