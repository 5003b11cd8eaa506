"""The built-in benchmark: one task a file, in KernelBench's format. Read as text, never imported."""
