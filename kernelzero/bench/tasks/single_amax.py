import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        x = torch.amax(x, dim=1)
        return x


def get_inputs():
    return [torch.randn(2, 100)]


def get_init_inputs():
    return []
