import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        x = torch.mul(x, 0.5)
        return torch.softmax(x, dim=-1)


def get_inputs():
    return [torch.randn(32, 32)]


def get_init_inputs():
    return []
