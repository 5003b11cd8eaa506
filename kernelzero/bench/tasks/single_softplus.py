import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        x = F.softplus(x)
        return x


def get_inputs():
    return [torch.randn(20, 200)]


def get_init_inputs():
    return []
