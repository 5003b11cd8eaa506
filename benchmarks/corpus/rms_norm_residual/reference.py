# small: ROWS=8, COLUMNS=130
import torch
import torch.nn as nn

ROWS = 4096
COLUMNS = 2048


class Model(nn.Module):
    """Residual addition and RMS normalisation: both the normalised and the added tensor are returned."""

    def __init__(self, columns, eps):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(columns) + 0.5)
        self.eps = eps

    def forward(self, x, residual):
        h = x + residual
        scale = torch.rsqrt(h.pow(2).mean(dim=-1, keepdim=True) + self.eps)
        return h * scale * self.weight, h


def get_inputs():
    return [torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return [COLUMNS, 1e-5]
