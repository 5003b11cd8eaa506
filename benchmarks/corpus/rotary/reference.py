# small: B=2, S=11, H=3, D=16
import torch
import torch.nn as nn

B = 8
S = 1024
H = 16
D = 64


class Model(nn.Module):
    """Rotary position embedding, halves rotated against each other."""

    def forward(self, x, cos, sin):
        half = x.shape[-1] // 2
        first, second = x[..., :half], x[..., half:]
        c, s = cos[None, :, None, :], sin[None, :, None, :]
        return torch.cat([first * c - second * s, second * c + first * s], dim=-1)


def get_inputs():
    angles = torch.rand(S, D // 2) * 6.28
    return [torch.randn(B, S, H, D), angles.cos(), angles.sin()]


def get_init_inputs():
    return []
