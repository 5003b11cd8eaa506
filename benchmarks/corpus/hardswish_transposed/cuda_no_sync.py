# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

#define TILE 32
#define ROWS 8

// x is column-major: a tile goes through shared memory so that both sides are coalesced.
__global__ void hardswish_add_tiled(const float* __restrict__ x, const float* __restrict__ y, float* __restrict__ out,
                                    int n, int m) {
    __shared__ float tile[TILE][TILE + 1];
    int row = blockIdx.y * TILE;  // along n
    int col = blockIdx.x * TILE;  // along m
    for (int r = threadIdx.y; r < TILE; r += ROWS) {
        int c = col + r, i = row + threadIdx.x;
        if (c < m && i < n) tile[r][threadIdx.x] = x[(size_t)c * n + i];
    }
    for (int r = threadIdx.y; r < TILE; r += ROWS) {
        int i = row + r, c = col + threadIdx.x;
        if (i < n && c < m) {
            float v = tile[threadIdx.x][r];
            float gate = fminf(fmaxf(v + 3.f, 0.f), 6.f) * (1.f / 6.f);
            out[(size_t)i * m + c] = v * gate + y[(size_t)i * m + c];
        }
    }
}

torch::Tensor hardswish_add(torch::Tensor x, torch::Tensor y) {
    int n = x.size(0), m = x.size(1);
    auto columns = x.t().contiguous();  // no copy where x is a transposed view
    auto rows = y.contiguous();
    auto out = torch::empty({n, m}, rows.options());
    dim3 block(TILE, ROWS), grid((m + TILE - 1) / TILE, (n + TILE - 1) / TILE);
    hardswish_add_tiled<<<grid, block>>>(columns.data_ptr<float>(), rows.data_ptr<float>(), out.data_ptr<float>(), n, m);
    return out;
}
"""
ext = load_inline(
    name="hardswish_without_sync",
    cpp_sources="torch::Tensor hardswish_add(torch::Tensor x, torch::Tensor y);",
    cuda_sources=source,
    functions=["hardswish_add"],
)


class ModelNew(nn.Module):
    def forward(self, x, y):
        return ext.hardswish_add(x, y)
