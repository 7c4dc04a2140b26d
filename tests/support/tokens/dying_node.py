"""A node of its own process that kills itself at a moment of the test's choice."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from support.store.servers import StoreServer
from support.tokens import harness

from tidewarden.config.load import Events
from tidewarden.tokens.accounts.account_store import AccountStore
from tidewarden.tokens.events import outbox
from tidewarden.tokens.events.outbox import Outbox

NO_SETTINGS: Mapping[str, Any] = MappingProxyType({})
FAILING = {"events": Events(failing_s=0)}
"""Every failure is told of."""


def die(*_args: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def before_it_tells() -> None:
    Outbox.look = die  # type: ignore[method-assign]


def before_it_says_that_it_told() -> None:
    tell = AccountStore.tell

    async def telling(
        self: AccountStore, queue: str, shard: int, most: int, claim_ms: int, told: Any = ()
    ) -> Any:
        if told:
            die()
        return await tell(self, queue, shard, most, claim_ms)

    AccountStore.tell = telling  # type: ignore[method-assign]


def before_it_stores() -> None:
    AccountStore.stored = die  # type: ignore[method-assign]


def nowhere() -> None:
    """It goes on until somebody else kills it."""


def play(
    where: str, socket: str, folder: Path, url: str, settings: Mapping[str, Any] = NO_SETTINGS
) -> None:
    """
    What such a process does. ``where``: the name of one of the functions above; ``settings``: of
    its provider.
    """
    globals()[where]()
    asyncio.run(_run(where == "before_it_stores", socket, folder, url, settings))


async def _run(
    failing: bool, socket: str, folder: Path, url: str, settings: Mapping[str, Any]
) -> None:
    store = StoreServer(socket, f"unix://{socket}")
    outbox.CLAIM_MS = 500  # what it had to tell is soon another's
    sections = FAILING if failing else None
    async with harness.node(
        store, folder, harness.provider(url, **settings), "n1", sections=sections, confirm_s=0.005
    ):
        await asyncio.sleep(60)
