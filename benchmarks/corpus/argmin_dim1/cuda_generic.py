# expect: correct
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

argmin_source = """
#include <torch/extension.h>

__global__ void argmin_middle(const float* x, int64_t* out, int outer, int reduce, int inner) {
    int idx = blockIdx.x * blockDim.x + threadIdx.x;
    if (idx < outer * inner) {
        int o = idx / inner, i = idx % inner;
        const float* base = x + (size_t)o * reduce * inner + i;
        float best = base[0];
        int at = 0;
        for (int r = 1; r < reduce; ++r) {
            float v = base[(size_t)r * inner];
            if (v < best) { best = v; at = r; }
        }
        out[idx] = at;
    }
}

torch::Tensor argmin_cuda(torch::Tensor x, int64_t dim) {
    auto sizes = x.sizes().vec();
    int outer = 1, inner = 1, reduce = sizes[dim];
    for (int64_t d = 0; d < dim; ++d) outer *= sizes[d];
    for (size_t d = dim + 1; d < sizes.size(); ++d) inner *= sizes[d];
    sizes.erase(sizes.begin() + dim);
    auto out = torch::empty(sizes, x.options().dtype(at::kLong));
    int total = outer * inner;
    argmin_middle<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<int64_t>(), outer, reduce, inner);
    return out;
}
"""
argmin_ext = load_inline(
    name="argmin_generic",
    cpp_sources="torch::Tensor argmin_cuda(torch::Tensor x, int64_t dim);",
    cuda_sources=argmin_source,
    functions=["argmin_cuda"],
)


class ModelNew(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dim = dim

    def forward(self, x):
        return argmin_ext.argmin_cuda(x.contiguous(), self.dim)
