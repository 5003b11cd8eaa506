import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)

    def forward(self, x, y):
        x = self.linear(x)
        x = torch.sigmoid(x)
        x = torch.mul(x, y)
        return x


def get_inputs():
    return [torch.randn(16, 100), torch.randn(16, 128)]


def get_init_inputs():
    return [100, 128]
