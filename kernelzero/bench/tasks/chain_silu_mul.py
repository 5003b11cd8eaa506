import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, y):
        x = F.silu(x)
        x = torch.mul(x, y)
        return x


def get_inputs():
    return [torch.randn(20, 40), torch.randn(20, 40)]


def get_init_inputs():
    return []
