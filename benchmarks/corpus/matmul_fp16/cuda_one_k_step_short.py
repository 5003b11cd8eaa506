# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>
#include <cuda_fp16.h>
#include <mma.h>
using namespace nvcuda;

// Tensor cores where the sizes are multiples of 16, a plain loop otherwise.
__global__ void hgemm_wmma(const half* a, const half* b, half* c, int M, int N, int K) {
    int warp_m = blockIdx.y * blockDim.y + threadIdx.y;
    int warp_n = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    __shared__ float staged[4][4][16 * 16];
    if (warp_m * 16 >= M || warp_n * 16 >= N) return;
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> fa;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> fb;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> acc;
    wmma::fill_fragment(acc, 0.0f);
    for (int k = 0; k < K - 16; k += 16) {
        wmma::load_matrix_sync(fa, a + (size_t)warp_m * 16 * K + k, K);
        wmma::load_matrix_sync(fb, b + (size_t)k * N + warp_n * 16, N);
        wmma::mma_sync(acc, fa, fb, acc);
    }
    float* tile = staged[threadIdx.y][threadIdx.x / 32];
    wmma::store_matrix_sync(tile, acc, 16, wmma::mem_row_major);
    __syncwarp();
    for (int i = threadIdx.x % 32; i < 256; i += 32) {
        c[(size_t)(warp_m * 16 + i / 16) * N + warp_n * 16 + i % 16] = __float2half(tile[i]);
    }
}

__global__ void hgemm_plain(const half* a, const half* b, half* c, int M, int N, int K) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row >= M || col >= N) return;
    float sum = 0.f;
    for (int k = 0; k < K - 16; ++k) sum += __half2float(a[(size_t)row * K + k]) * __half2float(b[(size_t)k * N + col]);
    c[(size_t)row * N + col] = __float2half(sum);
}

torch::Tensor hgemm(torch::Tensor a, torch::Tensor b) {
    int M = a.size(0), K = a.size(1), N = b.size(1);
    auto c = torch::empty({M, N}, a.options());
    auto pa = reinterpret_cast<const half*>(a.data_ptr<at::Half>());
    auto pb = reinterpret_cast<const half*>(b.data_ptr<at::Half>());
    auto pc = reinterpret_cast<half*>(c.data_ptr<at::Half>());
    if (M % 16 == 0 && N % 16 == 0 && K % 16 == 0) {
        dim3 block(128, 4), grid((N + 63) / 64, (M + 63) / 64);
        hgemm_wmma<<<grid, block>>>(pa, pb, pc, M, N, K);
    } else {
        dim3 block(16, 16), grid((N + 15) / 16, (M + 15) / 16);
        hgemm_plain<<<grid, block>>>(pa, pb, pc, M, N, K);
    }
    return c;
}
"""
ext = load_inline(
    name="hgemm_short_ext",
    cpp_sources="torch::Tensor hgemm(torch::Tensor a, torch::Tensor b);",
    cuda_sources=source,
    functions=["hgemm"],
    extra_cuda_cflags=["-O3", "-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__"],
)


class ModelNew(nn.Module):
    def forward(self, a, b):
        return ext.hgemm(a.contiguous(), b.contiguous())
