import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        x = torch.mul(x, y)
        return x


def get_inputs():
    return [torch.randn(32, 24), torch.randn(32, 24)]


def get_init_inputs():
    return []
