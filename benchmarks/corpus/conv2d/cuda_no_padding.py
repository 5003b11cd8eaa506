# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// grid: (pixel blocks, output channels, batch); the filter of the output channel sits in shared memory
__global__ void conv3x3_relu(const float* __restrict__ x, const float* __restrict__ w, const float* __restrict__ b,
                             float* __restrict__ y, int CI, int CO, int H, int W) {
    extern __shared__ float filter[];
    const int co = blockIdx.y, n = blockIdx.z;
    for (int i = threadIdx.x; i < CI * 9; i += blockDim.x) filter[i] = w[(size_t)co * CI * 9 + i];
    __syncthreads();
    const int p = blockIdx.x * blockDim.x + threadIdx.x;
    if (p >= H * W) return;
    const int h = p / W, ww = p % W;
    float acc = b[co];
    for (int ci = 0; ci < CI; ++ci) {
        const float* plane = x + ((size_t)n * CI + ci) * H * W;
        const float* f = filter + ci * 9;
#pragma unroll
        for (int kh = 0; kh < 3; ++kh) {
            const int ih = h + kh - 1;
            if (ih < 0 || ih >= H) continue;
#pragma unroll
            for (int kw = 0; kw < 3; ++kw) {
                const int iw = ww + kw;
                if (iw >= 0 && iw < W) acc = fmaf(plane[ih * W + iw], f[kh * 3 + kw], acc);
            }
        }
    }
    y[((size_t)n * CO + co) * H * W + p] = acc > 0.f ? acc : 0.f;
}

torch::Tensor conv_relu(torch::Tensor x, torch::Tensor w, torch::Tensor b) {
    const int N = x.size(0), CI = x.size(1), H = x.size(2), W = x.size(3), CO = w.size(0);
    auto y = torch::empty({N, CO, H, W}, x.options());
    dim3 grid((H * W + 255) / 256, CO, N);
    conv3x3_relu<<<grid, 256, CI * 9 * sizeof(float)>>>(
        x.data_ptr<float>(), w.data_ptr<float>(), b.data_ptr<float>(), y.data_ptr<float>(), CI, CO, H, W);
    return y;
}
"""
ext = load_inline(
    name="conv3x3_shifted_ext",
    cpp_sources="torch::Tensor conv_relu(torch::Tensor x, torch::Tensor w, torch::Tensor b);",
    cuda_sources=source,
    functions=["conv_relu"],
)


class ModelNew(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1)

    def forward(self, x):
        return ext.conv_relu(x.contiguous(), self.conv.weight.contiguous(), self.conv.bias)
