"""Copies an embedded store to a file, and back to a folder."""

from .command import backup, restore

__all__ = ["backup", "restore"]
