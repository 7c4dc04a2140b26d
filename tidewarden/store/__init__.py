"""The only room that opens connections to Valkey or Redis."""

from .connection import StoreConnection
from .scripts.loader import Script, Scripts

__all__ = ["Script", "Scripts", "StoreConnection"]
