# expect: correct
import torch
from torch.utils.cpp_extension import load_inline

cuda_source = '''
__global__ void scale_rows(const float* __restrict__ a, const float* __restrict__ b, float* __restrict__ c, int n, int m) {
    int col = blockIdx.x * blockDim.x + threadIdx.x;
    int row = blockIdx.y * blockDim.y + threadIdx.y;
    if (row < n && col < m) {
        long at = (long)row * m + col;
        c[at] = a[row] * b[at];
    }
}

at::Tensor diag_mm(at::Tensor a, at::Tensor b) {
    auto c = at::empty_like(b);
    int n = b.size(0), m = b.size(1);
    dim3 block(32, 8);
    dim3 grid((m + 31) / 32, (n + 7) / 8);
    scale_rows<<<grid, block>>>(a.data_ptr<float>(), b.data_ptr<float>(), c.data_ptr<float>(), n, m);
    return c;
}
'''  # noqa: E501
diag = load_inline(
    name="diag_mm_2d",
    cpp_sources="at::Tensor diag_mm(at::Tensor a, at::Tensor b);",
    cuda_sources=cuda_source,
    functions=["diag_mm"],
)


class ModelNew(torch.nn.Module):
    def forward(self, a, b):
        return diag.diag_mm(a, b)
