"""Tidewarden: a Raft-coordinated token-refresh scheduler and delay queue."""

__version__ = "0.1.0"
