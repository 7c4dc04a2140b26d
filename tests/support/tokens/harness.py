"""What the tests of the refreshers share: a node's worth of tokens on a real store."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.queues.desk import loading, queue_scripts
from support.waiting import eventually

from tidewarden.clock import Clock, SystemClock
from tidewarden.config.load import Cluster, Config, Node, Provider, Secret
from tidewarden.duties import Duties
from tidewarden.queue import Queues
from tidewarden.store import Scripts, StoreConnection
from tidewarden.store.near_copy import NearCopy
from tidewarden.tokens import Tokens, open_tokens
from tidewarden.tokens.accounts.account_store import AccountStore  # noqa: F401 - for the tests
from tidewarden.tokens.system_queues import system_queues


def provider(url: str, **settings: Any) -> Provider:
    """A provider named ``p`` at that address."""
    defaults: dict[str, Any] = {
        "client_id": "c0",
        "client_secret": Secret("cl-secret"),
        "timeout_s": 20.0,
    }
    return Provider(name="p", token_url=url, **(defaults | settings))


@dataclass
class Side:
    """One node: its tokens, and what they stand on. ``keys`` is the cluster's hash of data keys."""

    tokens: Tokens
    queues: Queues
    link: StoreConnection
    running: asyncio.Task[None] | None = None

    def go(self) -> None:
        """Start the refreshers."""
        self.running = asyncio.create_task(self.tokens.run(Duties(SystemClock())))


@contextlib.asynccontextmanager
async def node(
    store: Any,
    folder: Path,
    chosen: Provider,
    name: str = "n0",
    boot: int = 1,
    go: bool = True,
    sections: Any = None,
    more: Sequence[Provider] = (),
    config: Config | None = None,
    clock: Clock | None = None,
    near: Callable[[Scripts], NearCopy] | None = None,
    clustered: bool = False,
    **settings: Any,
) -> AsyncIterator[Side]:
    """
    A node's worth of tokens on ``store``; its vault key and journal lie in ``folder``. ``more``:
    further providers, ``sections``: others of its configuration. ``clock``: of all but its links to
    the store. ``near``: makes its own copy of the data. ``clustered``: queues are made with the shards
    that they have on a Redis Cluster.
    """
    clock = clock or SystemClock()
    cluster = config.cluster if config is not None else Cluster(name="t")
    config = Config(
        cluster=cluster,
        node=Node(name=name, data_dir=str(folder)),
        providers={each.name: each for each in (chosen, *more)},
        **(sections or {}),
    )
    scripts = queue_scripts()
    link = StoreConnection(store.url, name, SystemClock(), on_up=loading(store, scripts))
    await link.start(wait_s=60)
    copy = near(scripts) if near is not None else None
    made = system_queues(clustered=clustered)
    queues = Queues(config, link, scripts, clock, views=False, system_queues=made, near=copy)
    queues.catalog.holder = f"{name}.{boot}"

    def hear(push: Any) -> None:
        if push[0] == b"message":
            queues.wakeups.heard(push[1], push[2])

    heard = StoreConnection(store.url, f"{name}-heard", SystemClock(), on_message=hear)
    await heard.start(wait_s=60)
    await heard.call("SUBSCRIBE", f"{{t}}:wake:{queues.catalog.holder}", "{t}:queues")

    reading = copy.connected() if copy is not None else contextlib.nullcontext()
    try:
        await reading.__aenter__()
        tokens = await open_tokens(config, queues, clock, link.call, **settings)
        try:
            side = Side(tokens, queues, link)
            if go:
                side.go()
            yield side
        finally:
            await tokens.stop()
    finally:
        if queues.near is not None:
            await queues.near.age.stop()
        await reading.__aexit__(None, None, None)
        await heard.stop()
        await link.stop()
        await asyncio.sleep(0)  # Closed transports end in the next turn.


async def tell(events: Any, kind: str, provider: str, account: str = "", **details: Any) -> None:
    """Write an event that nothing has brought about."""
    await events.tell(
        f"evt_{secrets.token_hex(12)}", kind, SystemClock().unix_ms(), provider, account, details
    )


async def described(side: Any, account: str = "p/a") -> dict[str, Any]:
    entries, _ = await side.tokens.list()
    return next(entry for entry in entries if entry["account"] == account)


async def in_state(
    side: Any, state: str, account: str = "p/a", limit_s: float = 60
) -> dict[str, Any]:
    async def there() -> dict[str, Any] | None:
        entry = await described(side, account)
        return entry if entry["state"] == state else None

    return await eventually(there, limit_s)
