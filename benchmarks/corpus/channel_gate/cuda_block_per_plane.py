# expect: correct
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

namespace {
template <int WARPS>
__device__ float block_sum(float v) {
    __shared__ float s[WARPS];
    for (int o = 16; o > 0; o >>= 1) v += __shfl_down_sync(0xffffffffu, v, o);
    if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
    __syncthreads();
    float total = 0.f;
    for (int i = 0; i < WARPS; ++i) total += s[i];
    return total;
}

__global__ void channel_gate(const float* __restrict__ x, const float* __restrict__ offset, float* __restrict__ y, int C, int hw) {
    const float* in = x + (size_t)blockIdx.x * hw;
    float v = 0.f;
    for (int i = threadIdx.x; i < hw; i += 128) v += in[i];
    const float mean = block_sum<4>(v) / hw;
    const float z = mean * 4.f + offset[blockIdx.x % C];
    const float gate = 1.f / (1.f + expf(-z));
    for (int i = threadIdx.x; i < hw; i += 128) y[(size_t)blockIdx.x * hw + i] = in[i] * gate;
}
}  // namespace

torch::Tensor channel_gate_forward(torch::Tensor x, torch::Tensor offset) {
    auto y = torch::empty_like(x);
    channel_gate<<<x.size(0) * x.size(1), 128>>>(
        x.data_ptr<float>(), offset.data_ptr<float>(), y.data_ptr<float>(), x.size(1), x.size(2) * x.size(3));
    return y;
}
"""  # noqa: E501
ext = load_inline(
    name="channel_gate_planes",
    cpp_sources="torch::Tensor channel_gate_forward(torch::Tensor x, torch::Tensor offset);",
    cuda_sources=source,
    functions=["channel_gate_forward"],
)


class ModelNew(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(1, channels, 1, 1))

    def forward(self, x):
        return ext.channel_gate_forward(x.contiguous(), self.offset)
