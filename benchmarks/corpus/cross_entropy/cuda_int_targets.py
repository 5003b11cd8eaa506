# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cfloat>

__global__ void cross_entropy_kernel(const float* __restrict__ logits, const int* __restrict__ targets,
                                     float* __restrict__ loss, int classes) {
    extern __shared__ float shared[];
    const float* row = logits + (size_t)blockIdx.x * classes;
    float m = -FLT_MAX;
    for (int c = threadIdx.x; c < classes; c += blockDim.x) m = fmaxf(m, row[c]);
    shared[threadIdx.x] = m;
    __syncthreads();
    for (unsigned s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] = fmaxf(shared[threadIdx.x], shared[threadIdx.x + s]);
        __syncthreads();
    }
    m = shared[0];
    __syncthreads();
    float sum = 0.f;
    for (int c = threadIdx.x; c < classes; c += blockDim.x) sum += expf(row[c] - m);
    shared[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned s = blockDim.x / 2; s > 0; s >>= 1) {
        if (threadIdx.x < s) shared[threadIdx.x] += shared[threadIdx.x + s];
        __syncthreads();
    }
    if (threadIdx.x == 0) loss[blockIdx.x] = logf(shared[0]) + m - row[targets[blockIdx.x]];
}

torch::Tensor cross_entropy_forward(torch::Tensor logits, torch::Tensor targets) {
    TORCH_CHECK(targets.scalar_type() == torch::kInt64, "targets are int64");
    auto loss = torch::empty({logits.size(0)}, logits.options());
    const int threads = 256;
    cross_entropy_kernel<<<logits.size(0), threads, threads * sizeof(float)>>>(
        logits.data_ptr<float>(), reinterpret_cast<const int*>(targets.data_ptr<int64_t>()), loss.data_ptr<float>(), logits.size(1));
    return loss;
}
"""
ext = load_inline(
    name="cross_entropy_int",
    cpp_sources="torch::Tensor cross_entropy_forward(torch::Tensor logits, torch::Tensor targets);",
    cuda_sources=source,
    functions=["cross_entropy_forward"],
)


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        return ext.cross_entropy_forward(logits.contiguous(), targets.contiguous())
