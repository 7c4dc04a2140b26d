"""Ends consumers, by their connections or their session."""

from .command import app

__all__ = ["app"]
