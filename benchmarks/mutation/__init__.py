"""Mutation operators on Triton and CUDA candidates: each yields edits that make a right kernel wrong."""
