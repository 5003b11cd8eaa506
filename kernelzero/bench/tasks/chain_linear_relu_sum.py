import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 64)

    def forward(self, x):
        x = torch.relu(self.linear(x))
        return torch.sum(x, dim=-1)


def get_inputs():
    return [torch.randn(32, 32)]


def get_init_inputs():
    return []
