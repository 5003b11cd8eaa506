# small: ROWS=30, COLUMNS=17, PICKED=21
import torch
import torch.nn as nn

ROWS = 20000
COLUMNS = 1024
PICKED = 16384


class Model(nn.Module):
    def forward(self, x, index, weight):
        return torch.index_select(x, 0, index) * weight[:, None]


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.randint(0, ROWS, (PICKED,), dtype=torch.int32), torch.randn(PICKED)]


def get_init_inputs():
    return []
