import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(128, 32)

    def forward(self, x):
        x = self.linear(x)
        return torch.tanh(x)


def get_inputs():
    return [torch.randn(8, 128)]


def get_init_inputs():
    return []
