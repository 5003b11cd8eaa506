import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(32, 48)

    def forward(self, x, y):
        gate = torch.sigmoid(self.linear(x))
        return torch.mul(gate, y)


def get_inputs():
    return [torch.randn(16, 32), torch.randn(16, 48)]


def get_init_inputs():
    return []
