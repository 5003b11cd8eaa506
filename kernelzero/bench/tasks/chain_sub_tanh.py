import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        x = torch.sub(x, y)
        x = torch.tanh(x)
        return x


def get_inputs():
    return [torch.randn(8, 96), torch.randn(8, 96)]


def get_init_inputs():
    return []
