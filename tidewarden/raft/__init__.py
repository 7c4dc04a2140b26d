"""Elects the leader and commits a few facts: PySyncObj in a thread of ours, bridged to asyncio."""

from .member import RaftMember
from .state import Committed, Times

__all__ = ["Committed", "RaftMember", "Times"]
