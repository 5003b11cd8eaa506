# expect: incorrect
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r"""
#include <torch/extension.h>

__constant__ float kSix = 6.0f;

__global__ void depthwise3x3(const float* x, const float* w, float* y, int C, int H, int W, int OH, int OW, int stride, int total) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= total) return;
    int ow = i % OW;
    int oh = (i / OW) % OH;
    int plane = i / (OW * OH);
    int c = plane % C;
    const float* in = x + (size_t)plane * H * W;
    float acc = 0.f;
    for (int kh = 0; kh < 3; ++kh)
        for (int kw = kh / 2; kw < 3; ++kw) {
            int ih = oh * stride - 1 + kh, iw = ow * stride - 1 + kw;
            if (ih >= 0 && ih < H && iw >= 0 && iw < W) acc += in[ih * W + iw] * __ldg(w + c * 9 + kh * 3 + kw);
        }
    y[i] = fminf(fmaxf(acc * 4.f, 0.f), kSix);
}

torch::Tensor depthwise(torch::Tensor x, torch::Tensor w, int64_t stride) {
    int B = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3);
    int OH = (H - 1) / stride + 1, OW = (W - 1) / stride + 1;
    auto y = torch::empty({B, C, OH, OW}, x.options());
    int total = y.numel();
    depthwise3x3<<<(total + 255) / 256, 256>>>(x.data_ptr<float>(), w.data_ptr<float>(), y.data_ptr<float>(), C, H, W, OH, OW, (int)stride, total);
    return y;
}
"""  # noqa: E501
ext = load_inline(
    name="depthwise3x3_eight",
    cpp_sources="torch::Tensor depthwise(torch::Tensor x, torch::Tensor w, int64_t stride);",
    cuda_sources=source,
    functions=["depthwise"],
)


class ModelNew(nn.Module):
    def __init__(self, channels, stride):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, groups=channels, bias=False)
        self.stride = stride

    def forward(self, x):
        return ext.depthwise(x.contiguous(), self.conv.weight, self.stride)
