import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y, z):
        x = torch.add(torch.matmul(x, y), z)
        return torch.relu(x)


def get_inputs():
    return [torch.randn(16, 64), torch.randn(64, 32), torch.randn(16, 32)]


def get_init_inputs():
    return []
