"""KernelZero: two language models that teach each other to write GPU kernels."""

__version__ = "0.1.0"
