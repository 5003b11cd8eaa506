import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x):
        x = self.linear(x)
        x = torch.relu(x)
        x = torch.sum(x, dim=1)
        return x


def get_inputs():
    return [torch.randn(12, 16)]


def get_init_inputs():
    return [16, 32]
