# small: B=4, C=3, H=9, W=10
import torch
import torch.nn as nn

B = 16
C = 64
H = 112
W = 112


class Model(nn.Module):
    def __init__(self, kernel, stride, padding):
        super().__init__()
        self.pool = nn.MaxPool2d(kernel, stride=stride, padding=padding)

    def forward(self, x):
        return self.pool(x)


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return [3, 2, 1]
