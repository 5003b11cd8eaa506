# small: ROWS=31, COLUMNS=110
import torch
import torch.nn as nn

ROWS = 8192
COLUMNS = 8192


class Model(nn.Module):
    def forward(self, a, v):
        return torch.mv(a, v)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.randn(COLUMNS)]


def get_init_inputs():
    return []
