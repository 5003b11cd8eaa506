import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x, y):
        x = torch.sub(x, y)
        x = F.elu(x, alpha=0.5)
        x = torch.sum(x, dim=1)
        return x


def get_inputs():
    return [torch.randn(16, 80), torch.randn(16, 80)]


def get_init_inputs():
    return []
