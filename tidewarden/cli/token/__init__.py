"""Imports, shows, refreshes and explains accounts."""

from .command import app

__all__ = ["app"]
