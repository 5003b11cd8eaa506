import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x, w, y):
        x = torch.matmul(x, w)
        x = torch.add(x, y)
        x = torch.relu(x)
        return x


def get_inputs():
    return [torch.randn(2, 80), torch.randn(80, 8), torch.randn(2, 8)]


def get_init_inputs():
    return []
