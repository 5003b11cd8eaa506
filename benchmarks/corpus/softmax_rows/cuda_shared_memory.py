# expect: correct
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = "torch::Tensor softmax(torch::Tensor x);"
cuda_source = '''
#include <torch/extension.h>

__global__ void softmax_shared(const float* x, float* y, int cols) {
    extern __shared__ float buffer[];  // blockDim.x floats
    const int tid = threadIdx.x;
    const float* row = x + blockIdx.x * (long)cols;

    float local = -INFINITY;
    for (int i = tid; i < cols; i += blockDim.x) local = max(local, row[i]);
    buffer[tid] = local;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (tid < s) buffer[tid] = max(buffer[tid], buffer[tid + s]);
        __syncthreads();
    }
    const float biggest = buffer[0];
    __syncthreads();

    local = 0.0f;
    for (int i = tid; i < cols; i += blockDim.x) local += expf(row[i] - biggest);
    buffer[tid] = local;
    __syncthreads();
    for (int s = blockDim.x / 2; s > 0; s >>= 1) {
        if (tid < s) buffer[tid] += buffer[tid + s];
        __syncthreads();
    }
    const float total = buffer[0];

    for (int i = tid; i < cols; i += blockDim.x) {
        y[blockIdx.x * (long)cols + i] = expf(row[i] - biggest) / total;
    }
}

torch::Tensor softmax(torch::Tensor x) {
    auto y = torch::empty_like(x);
    int rows = x.size(0);
    int cols = x.size(1);
    int threads = 512;
    softmax_shared<<<rows, threads, threads * sizeof(float)>>>(x.data_ptr<float>(), y.data_ptr<float>(), cols);
    return y;
}
'''
op = load_inline(name="softmax_shared_op", cpp_sources=cpp_source, cuda_sources=cuda_source, functions=["softmax"])


class ModelNew(nn.Module):
    def forward(self, x):
        return op.softmax(x.contiguous())
