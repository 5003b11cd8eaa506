import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, y):
        x = torch.mul(x, y)
        x = torch.sum(x, dim=1)
        x = torch.sigmoid(x)
        return x


def get_inputs():
    return [torch.randn(8, 24), torch.randn(8, 24)]


def get_init_inputs():
    return []
