# small: ROWS=14, COLUMNS=95
import torch
import torch.nn as nn

ROWS = 8192
COLUMNS = 2048


class Model(nn.Module):
    """Huber-like loss, summed over the columns."""

    def __init__(self, beta):
        super().__init__()
        self.beta = beta

    def forward(self, x, y):
        return nn.functional.smooth_l1_loss(x, y, beta=self.beta, reduction="none").sum(dim=1)


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return [0.7]
