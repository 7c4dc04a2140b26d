"""The only room that opens connections to Valkey or Redis."""

from tidewarden.store.link import Link
from tidewarden.store.scripts import Script, Scripts

__all__ = ["Link", "Script", "Scripts"]
