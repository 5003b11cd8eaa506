# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
constexpr int TILE_DIM = 32;
constexpr int BLOCK_ROWS = 8;

/*
 * x is (m, n), y and out are (n, m). The extra column of the tile avoids bank conflicts.
 */
__global__ void transpose_add(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out, int m, int n)
{
    __shared__ float tile[TILE_DIM][TILE_DIM + 1];
    int col = blockIdx.x * TILE_DIM + threadIdx.x;
    int row = blockIdx.y * TILE_DIM + threadIdx.y;
    for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS)
        if (row + j < m && col < n) tile[threadIdx.y + j][threadIdx.x] = x[(row + j) * n + col];
    __syncthreads();
    col = blockIdx.y * TILE_DIM + threadIdx.x;
    row = blockIdx.x * TILE_DIM + threadIdx.y;
    for (int j = 0; j < TILE_DIM; j += BLOCK_ROWS)
        if (row + j < n && col < m) {
            int at = (row + j) * m + col;
            out[at] = tile[threadIdx.y + j][threadIdx.x] + 2.0f * y[at];
        }
}

torch::Tensor transpose_add_forward(torch::Tensor x, torch::Tensor y)
{
    const int m = x.size(0), n = x.size(1);
    auto out = torch::empty_like(y);
    const dim3 grid((n + TILE_DIM - 1) / TILE_DIM, (m + TILE_DIM - 1) / TILE_DIM);
    const dim3 block(TILE_DIM, BLOCK_ROWS);
    transpose_add<<<grid, block>>>(x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<float>(), m, n);
    return out;
}
"""  # noqa: E501
ext = load_inline(
    name="transpose_add_wrong",
    cpp_sources="torch::Tensor transpose_add_forward(torch::Tensor x, torch::Tensor y);",
    cuda_sources=source,
    functions=["transpose_add_forward"],
)


class ModelNew(nn.Module):
    def forward(self, x, y):
        return ext.transpose_add_forward(x.contiguous(), y.contiguous())
