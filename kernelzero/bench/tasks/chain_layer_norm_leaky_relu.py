import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.norm = nn.LayerNorm(features)

    def forward(self, x):
        x = self.norm(x)
        x = F.leaky_relu(x)
        return x


def get_inputs():
    return [torch.randn(4, 32)]


def get_init_inputs():
    return [32]
