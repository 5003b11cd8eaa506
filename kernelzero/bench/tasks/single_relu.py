import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        x = torch.relu(x)
        return x


def get_inputs():
    return [torch.randn(16, 48)]


def get_init_inputs():
    return []
