# small: B=2, C=8, H=5, W=6
import torch
import torch.nn as nn

B = 16
C = 64
H = 64
W = 64
GROUPS = 4


class Model(nn.Module):
    def __init__(self, groups, channels):
        super().__init__()
        self.gn = nn.GroupNorm(groups, channels)

    def forward(self, x):
        return self.gn(x)


def get_inputs():
    return [torch.randn(B, C, H, W) + 0.5]


def get_init_inputs():
    return [GROUPS, C]
