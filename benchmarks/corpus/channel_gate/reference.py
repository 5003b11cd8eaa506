# small: B=3, C=5, H=6, W=7
import torch
import torch.nn as nn

B = 32
C = 256
H = 56
W = 56


class Model(nn.Module):
    """Each plane is scaled by the sigmoid of its mean and a learned offset."""

    def __init__(self, channels):
        super().__init__()
        self.offset = nn.Parameter(torch.randn(1, channels, 1, 1))

    def forward(self, x):
        gate = torch.sigmoid(x.mean(dim=(2, 3), keepdim=True) * 4 + self.offset)
        return x * gate


def get_inputs():
    return [torch.randn(B, C, H, W) + torch.randn(B, C, 1, 1)]


def get_init_inputs():
    return [C]
