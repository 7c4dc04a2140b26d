"""Looks again and again at what other nodes may have changed."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from tidewarden import errors
from tidewarden.clock import Clock, rest

log = logging.getLogger("tidewarden.tokens")


async def look_for_ever(
    look: Callable[[], Awaitable[None]], clock: Clock, pause_s: float, complaint: str
) -> None:
    """Look every ``pause_s``. What goes wrong is logged once, as ``complaint``, and tried again."""
    said = ""
    while True:
        await rest(clock, pause_s)
        try:
            await look()
            said = ""
        except (errors.Error, OSError) as error:
            if str(error) != said:
                log.error("%s: %s", complaint, error)
            said = str(error)
