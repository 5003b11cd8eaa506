# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

src = r"""
#include <torch/extension.h>
#include <cooperative_groups.h>
namespace cg = cooperative_groups;

__global__ void l2_normalize(const float* x, float* y, int cols, float eps) {
    __shared__ float total;
    auto block = cg::this_thread_block();
    auto warp = cg::tiled_partition<32>(block);
    if (blockIdx.x == 0 && block.thread_rank() == 0) total = 1.f;
    block.sync();
    const float* in = x + (long long)blockIdx.x * cols;
    float sum = 0.f;
    for (int c = block.thread_rank(); c < cols; c += block.size()) sum += in[c] * in[c];
    for (int o = warp.size() / 2; o > 0; o /= 2) sum += warp.shfl_down(sum, o);
    if (warp.thread_rank() == 0) atomicAdd(&total, sum);
    block.sync();
    const float inverse = 1.f / (sqrtf(total) + eps);
    for (int c = block.thread_rank(); c < cols; c += block.size())
        y[(long long)blockIdx.x * cols + c] = in[c] * inverse;
}

torch::Tensor l2_forward(torch::Tensor x, float eps) {
    auto y = torch::empty_like(x);
    l2_normalize<<<x.size(0), 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.size(1), eps);
    return y;
}
"""
# A double is what Python hands over; the wrapper narrows it.
cpp = """
torch::Tensor l2_forward(torch::Tensor x, float eps);
torch::Tensor l2_entry(torch::Tensor x, double eps) { return l2_forward(x, (float)eps); }
"""
ext = load_inline(name="l2_not_cleared", cpp_sources=cpp, cuda_sources=src, functions=["l2_entry"])


class ModelNew(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return ext.l2_entry(x.contiguous(), self.eps)
