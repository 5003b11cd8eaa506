import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        x = torch.add(x, y)
        return x


def get_inputs():
    return [torch.randn(2, 200), torch.randn(2, 200)]


def get_init_inputs():
    return []
