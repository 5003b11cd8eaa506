# expect: correct
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def cross_entropy_kernel(logits_ptr, targets_ptr, loss_ptr, n_classes, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    mask = cols < n_classes
    logits = tl.load(logits_ptr + row * stride + cols, mask=mask, other=-float("inf"))
    target = tl.load(targets_ptr + row)
    biggest = tl.max(logits, axis=0)
    lse = tl.log(tl.sum(tl.exp(logits - biggest), axis=0)) + biggest
    chosen = tl.load(logits_ptr + row * stride + target)
    tl.store(loss_ptr + row, lse - chosen)


class ModelNew(nn.Module):
    def forward(self, logits, targets):
        n, classes = logits.shape
        loss = torch.empty(n, device=logits.device, dtype=torch.float32)
        cross_entropy_kernel[(n,)](
            logits, targets, loss, classes, logits.stride(0), BLOCK=triton.next_power_of_2(classes), num_warps=8
        )
        return loss
