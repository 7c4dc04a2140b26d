"""Shows the audit log."""

from .command import audit

__all__ = ["audit"]
