import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        x = torch.mean(x, dim=1)
        return x


def get_inputs():
    return [torch.randn(20, 8)]


def get_init_inputs():
    return []
