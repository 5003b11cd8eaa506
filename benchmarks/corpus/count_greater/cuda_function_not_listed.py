# expect: runtime_error
import torch
from torch.utils.cpp_extension import load_inline

cuda_src = r"""
#include <torch/extension.h>

// One warp a row: the ballot gives 32 comparisons at a time.
__global__ void count_rows(const float* x, const float* y, int64_t* out, int rows, int cols) {
    int warp = (blockIdx.x * blockDim.x + threadIdx.x) / 32;
    int lane = threadIdx.x % 32;
    if (warp >= rows) return;
    const float* a = x + (int64_t)warp * cols;
    const float* b = y + (int64_t)warp * cols;
    int count = 0;
    for (int base = 0; base < cols; base += 32) {
        int c = base + lane;
        bool greater = c < cols && a[c] > b[c];
        count += __popc(__ballot_sync(0xffffffffu, greater));
    }
    if (lane == 0) out[warp] = count;
}

at::Tensor count_greater(at::Tensor x, at::Tensor y) {
    int rows = x.size(0), cols = x.size(1);
    auto out = torch::empty({rows}, x.options().dtype(torch::kInt64));
    int threads = 128;
    int blocks = (rows * 32 + threads - 1) / threads;
    count_rows<<<blocks, threads>>>(x.data_ptr<float>(), y.data_ptr<float>(), out.data_ptr<int64_t>(), rows, cols);
    return out;
}
"""
module = load_inline(
    name="count_greater_unlisted",
    cpp_sources="at::Tensor count_greater(at::Tensor x, at::Tensor y);",
    cuda_sources=cuda_src,
    functions=[],
)


class ModelNew(torch.nn.Module):
    def forward(self, x, y):
        return module.count_greater(x.contiguous(), y.contiguous())
