"""Hostile CUDA C++ candidates, for a GPU: their host code crashes, exits or hangs, or their kernels do."""

from __future__ import annotations

from hostile.case import Hostile
from kernelzero.records import Backend, Candidate

_SOURCE = '''import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <cuda_runtime.h>
#include <cassert>
#include <cstdlib>
#include <unistd.h>

__global__ void kernel(const float* x, float* y, long n) {
    for (long i = blockIdx.x * (long)blockDim.x + threadIdx.x; i < n; i += (long)gridDim.x * blockDim.x) {
        DEVICE
        y[i] = x[i];
    }
}

static long dive(long depth) {
    volatile char page[4096];
    page[depth % 4096] = 1;
    return dive(depth + 1) + page[0];
}

torch::Tensor harm(torch::Tensor x) {
    auto y = torch::empty_like(x);
    kernel<<<512, 256>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
    HOST
    return y;
}
"""
extension = load_inline("hostile", "torch::Tensor harm(torch::Tensor x);", SOURCE, ["harm"])


class ModelNew(torch.nn.Module):
    def __init__(self, *arguments):
        super().__init__()

    def forward(self, *inputs):
        return extension.harm(inputs[0].contiguous())
'''
_TAKE_ALL = """void* kept;
    for (size_t size = 1ULL << 36; size > 1 << 20; size /= 2) while (cudaMalloc(&kept, size) == cudaSuccess) {}
    cudaGetLastError();"""
_FILL = """for (;;) {
        volatile char* p = (char*)malloc(1 << 26);
        for (long i = 0; i < 1 << 26; i += 4096) p[i] = 1;
    }"""


def cases() -> list[Hostile]:
    """All of them. What is refused for a symbol that it links to was to be stopped there."""
    return [
        _case("null_write", "runtime_error", host="*(volatile int*)0 = 1;"),
        _case("abort", "runtime_error", host="abort();"),
        _case("exit", "runtime_error|rejected", host="exit(0);"),
        _case("exit_at_once", "rejected|runtime_error", host="_exit(0);"),
        _case("fork", "rejected|runtime_error", host="if (fork() == 0) for (;;) sleep(1);"),
        _case("stack_overflow", "runtime_error", host="y.fill_(dive(x.numel()));"),
        _case("host_endless", "timeout", host="for (volatile int go = 1; go;) {}"),
        _case("host_memory", "runtime_error|timeout", host=_FILL),
        _case("device_memory", "runtime_error|incorrect|rejected|timeout", host=_TAKE_ALL),
        _case("device_far_store", "runtime_error", device="y[i + (1L << 40)] = x[i];"),
        _case("device_trap", "runtime_error", device='asm volatile("trap;");'),
        _case("device_assert", "runtime_error", device="assert(n < 0);"),
        _case("device_endless", "timeout", device="for (volatile float* out = y;;) out[i] = x[i];"),
    ]


def _case(name: str, expect: str, host: str = "", device: str = "") -> Hostile:
    source = _SOURCE.replace("HOST", host).replace("DEVICE", device)
    return Hostile(f"cuda/{name}", Candidate(source, Backend.CUDA), frozenset(expect.split("|")))
