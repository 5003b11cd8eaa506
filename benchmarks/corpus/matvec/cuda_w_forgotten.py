# expect: incorrect
import torch
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void matvec(const float* __restrict__ a, const float* __restrict__ v, float* __restrict__ y, int rows, int cols) {
    int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int lane = threadIdx.x & 31;
    if (row < rows) {
        const float* p = a + (size_t)row * cols;
        float s = 0.f;
        int done = 0;
        if (cols % 4 == 0) {
            const float4* p4 = (const float4*)p;
            const float4* v4 = (const float4*)v;
            for (int c = lane; c < cols / 4; c += 32) {
                float4 x = p4[c], w = v4[c];
                s = fmaf(x.x, w.x, s);
                s = fmaf(x.y, w.y, s);
                s = fmaf(x.z, w.z, s);

            }
            done = cols;
        }
        for (int c = done + lane; c < cols - 1; c += 32) s += p[c] * v[c];
        for (int o = 16; o > 0; o >>= 1) s += __shfl_down_sync(0xffffffff, s, o);
        if (lane == 0) y[row] = s;
    }
}

torch::Tensor matvec_forward(torch::Tensor a, torch::Tensor v) {
    int rows = a.size(0), cols = a.size(1);
    auto y = torch::empty({rows}, a.options());
    matvec<<<(rows + 7) / 8, 256>>>(a.data_ptr<float>(), v.data_ptr<float>(), y.data_ptr<float>(), rows, cols);
    return y;
}
"""  # noqa: E501
ext = load_inline(
    name="matvec_three_of_four",
    cpp_sources="torch::Tensor matvec_forward(torch::Tensor a, torch::Tensor v);",
    cuda_sources=source,
    functions=["matvec_forward"],
)


class ModelNew(torch.nn.Module):
    def forward(self, a, v):
        return ext.matvec_forward(a.contiguous(), v)
