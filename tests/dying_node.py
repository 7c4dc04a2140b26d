"""A node of its own process that kills itself at a moment of the test's choice: ``python dying_node.py WHERE SOCKET FOLDER URL``."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

import tokens_harness as harness
from store_servers import StoreServer

from tidewarden.config import Events
from tidewarden.tokens import outbox
from tidewarden.tokens.ledger import Ledger
from tidewarden.tokens.outbox import Outbox

FAILING = {"events": Events(failing_s=0)}
"""Every failure is told of."""


def die(*_args: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def before_it_tells() -> None:
    Outbox.look = die  # type: ignore[method-assign]


def before_it_says_that_it_told() -> None:
    tell = Ledger.tell

    async def telling(self: Ledger, queue: str, shard: int, most: int, claim_ms: int, told: Any = ()) -> Any:
        if told:
            die()
        return await tell(self, queue, shard, most, claim_ms)

    Ledger.tell = telling  # type: ignore[method-assign]


def before_it_stores() -> None:
    Ledger.stored = die  # type: ignore[method-assign]


async def main(socket: str, folder: str, url: str) -> None:
    store = StoreServer(socket, f"unix://{socket}")
    chosen = harness.provider(url)
    sections = FAILING if sys.argv[1] == "before_it_stores" else None
    outbox.CLAIM_MS = 500  # what it had to tell is soon another's
    async with harness.node(store, Path(folder), chosen, "n1", sections=sections, confirm_s=0.05):
        await asyncio.sleep(60)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    asyncio.run(main(*sys.argv[2:]))
