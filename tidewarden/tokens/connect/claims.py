"""Uses up states and links, once for all nodes: what is used up lies in the store for a while."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tidewarden.tokens.vault.provider_records import QUEUE

from .outcomes import CONNECTED, PENDING, ConsentFailed
from .sealed_visits import Link

RunScript = Callable[[str, str, int, Sequence[str | bytes | int]], Awaitable[Any]]
"""Runs a script by its name on a shard of a queue, with arguments; returns its items."""
DONE = "done"
STATES_MAX = 20
"""So often the browsers of one link may come back: each leaves something in the store."""
LINK_MS_MAX = 86_400_000
"""The longest life of a link. How much of it is left, two nodes' clocks may see differently."""
KEPT_MS = 60_000
"""Beyond a link's life and a visit's: the clocks of nodes may differ."""
SLACK_MS = 60_000
"""So long at most it takes to store what was given, beside the sending of a code."""

Claim = tuple[str, str]
"""The ids under which a state and its link are remembered; neither can be told from them."""


class Claims:
    """Uses up states; every method raises what the store raises."""

    def __init__(self, script: RunScript, visit_ms: int) -> None:
        """Remember a state beyond the ``visit_ms`` that a browser may be away."""
        self._script = script
        self._visit_ms = visit_ms

    async def use_up(self, state: str, link: Link, exchange_s: float) -> Claim:
        """
        Use up a state, before anything is done for it.

        ``exchange_s``: the longest time that its code may be under way. Raises: ConsentFailed: it
        was used up before, with the word of how that ended where it is known; or its link has
        served its purpose.
        """
        claim = f"s:{_digest(state)}", f"l:{_digest(link.id)}"
        args = (*claim, LINK_MS_MAX + self._visit_ms + KEPT_MS, STATES_MAX)
        word, said, age_ms = await self._script("tokens.connect_claim", QUEUE, 0, args)
        if word == b"NEW":
            return claim
        if word != b"USED":
            raise ConsentFailed("link_used")
        ended = said.decode()
        if not ended:  # another node is at it, or was when it died
            ended = PENDING if age_ms < exchange_s * 1000 + SLACK_MS else "replayed"
        raise ConsentFailed(CONNECTED if ended == DONE else ended)

    async def end(self, claim: Claim, said: str) -> None:
        """Note what came of a state: :data:`DONE`, or the word of an ending."""
        await self._script("tokens.connect_end", QUEUE, 0, (*claim, said))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]
