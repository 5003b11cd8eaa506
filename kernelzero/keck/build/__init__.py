"""Builds the CUDA extensions of candidates in seconds, and loads them in the candidate's process.

builder = Builder(cache)              # trusted side
host = host_library(cache)            # once a machine
install(lambda spec: builder.build(spec).answer(), host)   # candidate's side; usually over a socket

Device code alone, as torch.cuda._compile_kernel and CuPy take it, has a candidate's side of its own (bare.py).
"""

from kernelzero.keck.build.builder import Builder, BuildFailure, Built, Kernel, host_library
from kernelzero.keck.build.precision import ReducedPrecision, reduced_precision
from kernelzero.keck.build.spec import BuildSpec, Refused, SourceFile, device_request, parse_request
from kernelzero.keck.build.toolchain import BuildLimits

__all__ = [
    "BuildFailure", "BuildLimits", "BuildSpec", "Builder", "Built", "Kernel", "ReducedPrecision", "Refused",
    "SourceFile", "device_request", "host_library", "parse_request", "reduced_precision",
]  # fmt: skip
