"""Starts and supervises a cluster on this machine."""

from .command import up

__all__ = ["up"]
