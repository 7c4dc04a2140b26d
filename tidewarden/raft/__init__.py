"""Who leads and what is committed: PySyncObj, ticked by a thread of ours and bridged to asyncio in one place."""

from .decide import Facts, Times
from .member import Raft

__all__ = ["Facts", "Raft", "Times"]
