import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        x = torch.sigmoid(x)
        return x


def get_inputs():
    return [torch.randn(2, 128)]


def get_init_inputs():
    return []
