"""The Coder: prompts for each backend and the kernel in its answer. Kernels are judged elsewhere, by Keck."""
