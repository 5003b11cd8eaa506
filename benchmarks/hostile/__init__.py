"""Candidates that crash, hang, exit or take all memory, for soak.py: none may ever be correct, or disturb others."""
