"""A stream that nobody closed says where it was opened: it is seen in a later test than its own."""

from __future__ import annotations

import asyncio
import traceback
import warnings
from typing import Any

FRAMES = 12
_begin = asyncio.StreamWriter.__init__


def _opened(self: asyncio.StreamWriter, *args: Any, **options: Any) -> None:
    _begin(self, *args, **options)
    frames = traceback.walk_stack(None)
    self.opened_at = traceback.StackSummary.extract(  # type: ignore[attr-defined]
        frames, limit=FRAMES, lookup_lines=False
    )


def _left(self: asyncio.StreamWriter) -> None:
    if self.transport.is_closing():
        return
    if not self.transport._loop.is_closed():  # type: ignore[attr-defined]
        self.close()
    where = "".join(getattr(self, "opened_at", traceback.StackSummary()).format())
    said = f"nobody closed the stream that was opened at\n{where}"
    warnings.warn(said, ResourceWarning, stacklevel=2)


def name_them() -> None:
    """Have streams say so from now on, in asyncio's stead."""
    asyncio.StreamWriter.__init__ = _opened  # type: ignore[method-assign]
    asyncio.StreamWriter.__del__ = _left  # type: ignore[attr-defined]
