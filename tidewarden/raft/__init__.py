"""
Who leads and what is committed: PySyncObj, ticked by a thread of ours and bridged to asyncio in one
place.
"""

from .member import RaftMember
from .state import Committed, Times

__all__ = ["Committed", "RaftMember", "Times"]
