# expect: correct
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = """
#include <torch/extension.h>

__global__ void avg_pool1d(const float* x, float* y, int rows, int length, int out_length, int k, int stride, int pad) {
    int o = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y;
    if (o >= out_length || row >= rows) return;
    int first = o * stride - pad;
    float sum = 0.f;
    for (int i = max(first, 0); i < min(first + k, length); ++i) sum += x[(size_t)row * length + i];
    y[(size_t)row * out_length + o] = sum / k;
}

torch::Tensor avg_pool1d_forward(torch::Tensor x, int64_t k, int64_t stride, int64_t pad) {
    int rows = x.size(0) * x.size(1), length = x.size(2);
    int out_length = (length + 2 * pad - k) / stride + 1;
    auto y = torch::empty({x.size(0), x.size(1), out_length}, x.options());
    dim3 grid((out_length + 127) / 128, rows);
    avg_pool1d<<<grid, 128>>>(x.data_ptr<float>(), y.data_ptr<float>(), rows, length, out_length, k, stride, pad);
    return y;
}
"""
ext = load_inline(
    name="avg_pool1d_loop",
    cpp_sources="torch::Tensor avg_pool1d_forward(torch::Tensor x, int64_t k, int64_t stride, int64_t pad);",
    cuda_sources=source,
    functions=["avg_pool1d_forward"],
)


class ModelNew(nn.Module):
    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.kernel, self.stride, self.padding = kernel, stride, padding

    def forward(self, x):
        return ext.avg_pool1d_forward(x.contiguous(), self.kernel, self.stride, self.padding)
