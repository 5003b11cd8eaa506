# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cfloat>

#define FULL_MASK 0xffffffff

__inline__ __device__ float warp_max(float v) {
    for (int offset = 16; offset > 0; offset /= 2)
        v = fmaxf(v, __shfl_down_sync(FULL_MASK, v, offset));
    return v;
}

__inline__ __device__ float warp_sum(float v) {
    for (int offset = 16; offset > 0; offset /= 2)
        v += __shfl_down_sync(FULL_MASK, v, offset);
    return v;
}

// One block a row: maximum, sum of exponentials, quotient.
__global__ void softmax_kernel(const float* __restrict__ x, float* __restrict__ y, int cols) {
    __shared__ float partial[32];
    __shared__ float row_max, row_sum;
    const float* in = x + (size_t)blockIdx.x * cols;
    float* out = y + (size_t)blockIdx.x * cols;
    int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5, warps = blockDim.x >> 5;

    float m = -FLT_MAX;
    for (int c = tid; c < cols; c += blockDim.x) m = fmaxf(m, in[c]);
    m = warp_max(m);
    if (lane == 0) partial[warp] = m;
    __syncthreads();
    if (warp == 0) {
        m = lane < warps ? partial[lane] : -FLT_MAX;
        m = warp_max(m);
        if (lane == 0) row_max = m;
    }
    __syncthreads();

    float s = 0.f;
    for (int c = tid; c < cols; c += blockDim.x) {
        float e = expf(in[c] - row_max);
        out[c] = e;
        s += e;
    }
    s = warp_sum(s);
    if (lane == 0) partial[warp] = s;
    __syncthreads();
    if (warp == 0) {
        if (lane == 0) row_sum = partial[0];
    }
    __syncthreads();

    float inverse = 1.f / row_sum;
    for (int c = tid; c < cols; c += blockDim.x) out[c] *= inverse;
}

torch::Tensor softmax_forward(torch::Tensor x) {
    TORCH_CHECK(x.is_cuda() && x.dim() == 2);
    auto in = x.contiguous();
    auto y = torch::empty_like(in);
    softmax_kernel<<<in.size(0), 256>>>(in.data_ptr<float>(), y.data_ptr<float>(), in.size(1));
    return y;
}
"""

softmax_ext = load_inline(
    name="softmax_first_warp",
    cpp_sources="torch::Tensor softmax_forward(torch::Tensor x);",
    cuda_sources=source,
    functions=["softmax_forward"],
    verbose=False,
    extra_cflags=["-O3"],
    extra_cuda_cflags=["-O3", "--use_fast_math"],
)


class ModelNew(nn.Module):
    def __init__(self):
        super(ModelNew, self).__init__()  # noqa: UP008
        self.softmax = softmax_ext

    def forward(self, x):
        return self.softmax.softmax_forward(x)
