# small: ROWS=11, COLUMNS=90
import torch
import torch.nn as nn

ROWS = 4096
COLUMNS = 3000


class Model(nn.Module):
    def __init__(self, eps):
        super().__init__()
        self.eps = eps

    def forward(self, x):
        return x / (x.norm(p=2, dim=1, keepdim=True) + self.eps)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return [1e-3]
