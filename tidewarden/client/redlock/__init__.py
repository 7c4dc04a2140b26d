"""Redlock: locks over independent Redis or Valkey servers. See docs/locks.md."""

from .blocking import Redlock, RedlockLock
from .lock import AsyncRedlock, AsyncRedlockLock

__all__ = ["AsyncRedlock", "AsyncRedlockLock", "Redlock", "RedlockLock"]
