# expect: correct
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

// One block a query; scores of all earlier keys in shared memory.
__global__ void causal_attention(const float* __restrict__ q, const float* __restrict__ k, const float* __restrict__ v,
                                 float* __restrict__ out, int S, int D, float scale) {
    extern __shared__ float scores[];
    __shared__ float reduce[128];
    const int query = blockIdx.x;
    const size_t base = (size_t)blockIdx.y * S * D;
    const float* qr = q + base + (size_t)query * D;
    float biggest = -1e30f;
    for (int j = threadIdx.x; j <= query; j += blockDim.x) {
        const float* kr = k + base + (size_t)j * D;
        float dot = 0.f;
        for (int d = 0; d < D; ++d) dot += qr[d] * kr[d];
        scores[j] = dot * scale;
        biggest = fmaxf(biggest, scores[j]);
    }
    reduce[threadIdx.x] = biggest;
    __syncthreads();
    for (int s = 64; s > 0; s >>= 1) {
        if (threadIdx.x < s) reduce[threadIdx.x] = fmaxf(reduce[threadIdx.x], reduce[threadIdx.x + s]);
        __syncthreads();
    }
    biggest = reduce[0];
    __syncthreads();
    float sum = 0.f;
    for (int j = threadIdx.x; j <= query; j += blockDim.x) {
        scores[j] = expf(scores[j] - biggest);
        sum += scores[j];
    }
    reduce[threadIdx.x] = sum;
    __syncthreads();
    for (int s = 64; s > 0; s >>= 1) {
        if (threadIdx.x < s) reduce[threadIdx.x] += reduce[threadIdx.x + s];
        __syncthreads();
    }
    const float inverse = 1.f / reduce[0];
    for (int d = threadIdx.x; d < D; d += blockDim.x) {
        float acc = 0.f;
        for (int j = 0; j <= query; ++j) acc += scores[j] * v[base + (size_t)j * D + d];
        out[base + (size_t)query * D + d] = acc * inverse;
    }
}

torch::Tensor attention(torch::Tensor q, torch::Tensor k, torch::Tensor v) {
    const int heads = q.size(0) * q.size(1), S = q.size(2), D = q.size(3);
    auto out = torch::empty_like(q);
    causal_attention<<<dim3(S, heads), 128, S * sizeof(float)>>>(
        q.data_ptr<float>(), k.data_ptr<float>(), v.data_ptr<float>(), out.data_ptr<float>(), S, D, rsqrtf((float)D));
    return out;
}
"""
ext = load_inline(
    name="causal_attention_rows",
    cpp_sources="torch::Tensor attention(torch::Tensor q, torch::Tensor k, torch::Tensor v);",
    cuda_sources=source,
    functions=["attention"],
)


class ModelNew(nn.Module):
    def forward(self, q, k, v):
        return ext.attention(q.contiguous(), k.contiguous(), v.contiguous())
