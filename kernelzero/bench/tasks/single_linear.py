import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features, bias=False)

    def forward(self, x):
        x = self.linear(x)
        return x


def get_inputs():
    return [torch.randn(2, 96)]


def get_init_inputs():
    return [96, 40]
