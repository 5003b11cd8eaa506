import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        x = torch.clamp(x, min=0.0)
        return x


def get_inputs():
    return [torch.randn(32, 160)]


def get_init_inputs():
    return []
