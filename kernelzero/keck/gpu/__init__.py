"""Keck on an NVIDIA GPU: what differs from the CPU, one idea a file.

cudart.py    the few CUDA runtime calls that torch does not offer
mailbox.py   tensors between judge and child through CUDA IPC
lease.py     who may use the GPU: many check, one times
broker.py    ptxas and the C compiler for a child that may start no program
trace.py     the kernels that really ran, from CUPTI
runtime.py   the child's side: rules of `forward`, timed bursts
timing.py    the judge's side: plan, two clocks, statistics
"""
