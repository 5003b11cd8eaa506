# expect: incorrect
import torch
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

template <typename index_t>
__global__ void gather_scale(const float* x, const index_t* index, const float* weight, float* out, int cols) {
    const int64_t row = blockIdx.x;
    const int64_t from = index[row];
    const float w = weight[from % gridDim.x];
    for (int c = threadIdx.x; c < cols; c += blockDim.x) {
        out[row * cols + c] = x[from * cols + c] * w;
    }
}

torch::Tensor gather_scale_forward(torch::Tensor x, torch::Tensor index, torch::Tensor weight) {
    const int picked = index.numel(), cols = x.size(1);
    auto out = torch::empty({picked, cols}, x.options());
    if (index.scalar_type() == torch::kInt) {
        gather_scale<int><<<picked, 256>>>(x.data_ptr<float>(), index.data_ptr<int>(), weight.data_ptr<float>(), out.data_ptr<float>(), cols);
    } else {
        gather_scale<int64_t><<<picked, 256>>>(x.data_ptr<float>(), index.data_ptr<int64_t>(), weight.data_ptr<float>(), out.data_ptr<float>(), cols);
    }
    return out;
}
"""  # noqa: E501
ext = load_inline(
    name="gather_scale_wrong_weight",
    cpp_sources="torch::Tensor gather_scale_forward(torch::Tensor x, torch::Tensor index, torch::Tensor weight);",
    cuda_sources=source,
    functions=["gather_scale_forward"],
)


class ModelNew(torch.nn.Module):
    def forward(self, x, index, weight):
        return ext.gather_scale_forward(x.contiguous(), index, weight)
