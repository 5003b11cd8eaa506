# small: B=9, CLASSES=70
import torch
import torch.nn as nn

B = 8192
CLASSES = 4096


class Model(nn.Module):
    """The loss of each sample."""

    def forward(self, logits, targets):
        return nn.functional.cross_entropy(logits, targets, reduction="none")


def get_inputs():
    return [torch.randn(B, CLASSES), torch.randint(0, CLASSES, (B,))]


def get_init_inputs():
    return []
