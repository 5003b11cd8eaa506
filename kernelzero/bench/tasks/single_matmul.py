import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, w):
        x = torch.matmul(x, w)
        return x


def get_inputs():
    return [torch.randn(20, 32), torch.randn(32, 100)]


def get_init_inputs():
    return []
