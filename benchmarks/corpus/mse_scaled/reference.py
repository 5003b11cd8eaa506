# small: B=6, D=200
import torch
import torch.nn as nn

B = 4096
D = 8192


class Model(nn.Module):
    def forward(self, predictions, targets):
        return torch.mean((predictions - targets) ** 2)


def get_inputs():
    scale = torch.rand(()) + 0.2
    return [torch.randn(B, D) * scale, torch.randn(B, D) * scale]


def get_init_inputs():
    return []
