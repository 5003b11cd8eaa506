import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.leaky_relu = nn.LeakyReLU(0.2)

    def forward(self, x):
        x = self.leaky_relu(x)
        return x


def get_inputs():
    return [torch.randn(16, 20)]


def get_init_inputs():
    return []
