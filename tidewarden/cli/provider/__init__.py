"""Puts, shows and removes providers while nodes run."""

from .command import app

__all__ = ["app"]
