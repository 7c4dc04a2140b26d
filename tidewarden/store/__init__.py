"""Speaks to Valkey or Redis; no other room opens connections to it."""

from .connection import StoreConnection
from .scripts.loader import Script, Scripts

__all__ = ["Script", "Scripts", "StoreConnection"]
