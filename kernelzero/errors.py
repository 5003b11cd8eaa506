"""Errors that a user can act on.

Everything else propagates as it is: a traceback is a defect of KernelZero, never an answer to a user.
"""

from __future__ import annotations


class UsageError(Exception):
    """The user's input cannot be used; the message is one clear line and the command exits with 2."""


class InfrastructureError(Exception):
    """The machinery failed, not the thing being judged; the command exits with 3 and nothing is rewarded."""
