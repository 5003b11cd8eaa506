# small: N=2500
import torch
import torch.nn as nn

N = 8000000


class Model(nn.Module):
    """Integers, exactly: the remainder has the sign of the divisor."""

    def __init__(self, modulus):
        super().__init__()
        self.modulus = modulus

    def forward(self, a, b):
        return (a * 3 + b) % self.modulus


def get_inputs():
    return [torch.randint(-1000, 1000, (N,)), torch.randint(-1000, 1000, (N,))]


def get_init_inputs():
    return [97]
