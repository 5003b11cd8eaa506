# small: B=16, I=32, O=24
import torch
import torch.nn as nn

B = 2048
I = 2048  # noqa: E741
O = 2048  # noqa: E741


class Model(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.fc = nn.Linear(inputs, outputs, dtype=torch.bfloat16)

    def forward(self, x):
        return nn.functional.silu(self.fc(x))


def get_inputs():
    return [torch.randn(B, I).to(torch.bfloat16)]


def get_init_inputs():
    return [I, O]
