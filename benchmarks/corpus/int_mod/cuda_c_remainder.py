# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__global__ void mod_kernel(const int64_t* a, const int64_t* b, int64_t* out, int64_t modulus, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) {
        int64_t r = (a[i] * 3 + b[i]) % modulus;
        out[i] = r;
    }
}

torch::Tensor int_mod(torch::Tensor a, torch::Tensor b, int64_t modulus) {
    auto out = torch::empty_like(a);
    int64_t n = a.numel();
    mod_kernel<<<(n + 255) / 256, 256>>>(
        a.data_ptr<int64_t>(), b.data_ptr<int64_t>(), out.data_ptr<int64_t>(), modulus, n);
    return out;
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
    m.def("int_mod", &int_mod, "(3a + b) mod m");
}
"""
ext = load_inline(name="int_mod_c", cpp_sources="", cuda_sources=source)


class ModelNew(nn.Module):
    def __init__(self, modulus):
        super().__init__()
        self.modulus = modulus

    def forward(self, a, b):
        return ext.int_mod(a, b, self.modulus)
