# expect: correct
import torch
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define ROWS_PER_BLOCK 64

// A thread owns a column and ROWS_PER_BLOCK rows; partial sums meet in an atomic addition.
__global__ void column_sum(const float* __restrict__ x, float* __restrict__ out, int rows, int cols) {
    int c = blockIdx.x * blockDim.x + threadIdx.x;
    if (c >= cols) return;
    int first = blockIdx.y * ROWS_PER_BLOCK;
    int last = min(first + ROWS_PER_BLOCK, rows);
    float sum = 0.f;
    for (int r = first; r < last; ++r) sum += x[(size_t)r * cols + c];
    atomicAdd(out + c, sum);
}

torch::Tensor column_sum_forward(torch::Tensor x) {
    int rows = x.size(0), cols = x.size(1);
    auto out = torch::zeros({cols}, x.options());
    dim3 grid((cols + 255) / 256, (rows + ROWS_PER_BLOCK - 1) / ROWS_PER_BLOCK);
    column_sum<<<grid, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), rows, cols);
    return out;
}
"""
ext = load_inline(
    name="column_sum_atomic",
    cpp_sources="torch::Tensor column_sum_forward(torch::Tensor x);",
    cuda_sources=source,
    functions=["column_sum_forward"],
)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        return ext.column_sum_forward(x)
