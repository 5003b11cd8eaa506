import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        x = self.norm(x)
        return x


def get_inputs():
    return [torch.randn(4, 10)]


def get_init_inputs():
    return [10]
