# small: B=3, C=4, H=11, W=13
import torch
import torch.nn as nn

B = 16
C = 64
H = 128
W = 128


class Model(nn.Module):
    """The whole tensor divided by its norm."""

    def forward(self, x):
        return x / torch.norm(x, p="fro")


def get_inputs():
    return [torch.randn(B, C, H, W)]


def get_init_inputs():
    return []
