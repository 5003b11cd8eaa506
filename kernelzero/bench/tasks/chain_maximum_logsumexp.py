import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x, y):
        return torch.logsumexp(torch.maximum(x, y), dim=-1)


def get_inputs():
    return [torch.randn(48, 32), torch.randn(48, 32)]


def get_init_inputs():
    return []
