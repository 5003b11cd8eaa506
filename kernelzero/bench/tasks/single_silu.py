import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.silu = nn.SiLU()

    def forward(self, x):
        x = self.silu(x)
        return x


def get_inputs():
    return [torch.randn(2, 200)]


def get_init_inputs():
    return []
