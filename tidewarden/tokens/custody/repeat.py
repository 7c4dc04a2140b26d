"""Repeats a reading of the store for ever, and logs each trouble once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from tidewarden import errors
from tidewarden.clock import Clock, rest

log = logging.getLogger("tidewarden.tokens")


async def repeat_for_ever(
    read: Callable[[], Awaitable[None]], clock: Clock, pause_s: float, complaint: str
) -> None:
    """
    Call ``read`` every ``pause_s``.

    An error is logged once as ``complaint`` for as long as it lasts, and ``read`` is called again.
    """
    said = ""
    while True:
        await rest(clock, pause_s)
        try:
            await read()
            said = ""
        except (errors.Error, OSError) as error:
            if str(error) != said:
                log.error("%s: %s", complaint, error)
            said = str(error)
