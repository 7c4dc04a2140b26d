"""Everything that a node does on a usual day, and the servers outside that it does it with."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from support.cluster.harness import CLUSTER, Cluster, Node, until
from support.doors.http_app import served_in_thread
from support.providers.provider_settings import section
from support.providers.scripted_provider import ScriptedProvider, answers, scripted_provider
from support.providers.webhook_receiver import KEYS, SECRETS, Receiver, receiver

from tidewarden.client.replies import mapped

WORK_S = 60.0
"""What each loop gets to show that it goes on."""


@dataclass
class Outside:
    """The servers outside: a provider that fails the accounts ``down…``, and a webhook."""

    provider: ScriptedProvider
    hooks: Receiver

    def toml(self, **rates: float) -> str:
        """Their sections of a node's configuration; ``rates``: more of the provider's."""
        return section("p", self.provider, margin_s=2.0, **rates) + (
            '[events]\nfailing_s = 1\n[companions.books]\nqueue = "books"\n'
            f'[webhooks.ops]\nurl = "{self.hooks.url}"\nsecret = "{SECRETS[0]}"\n'
        )


async def _some_fail(
    request: web.Request, provider: ScriptedProvider, token: str
) -> web.StreamResponse:
    if token.startswith("down"):
        return await answers(503, {})(request, provider, token)
    return provider.rotate(token)


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    provider = scripted_provider(life_s=15, any_number=True, script=_some_fail)
    with served_in_thread(provider) as made, served_in_thread(receiver(KEYS[0])) as hooks:
        yield Outside(made, hooks)


def stats(node: Node, queue: str) -> dict[str, Any]:
    return mapped(node.say("Q.STATS", queue))


class Work:
    """What a node does by itself, each round with tasks and accounts of its own."""

    def __init__(self, nodes: Cluster, outside: Outside, name: str) -> None:
        self.node, self.store, self.outside, self.name = (
            nodes.nodes["n0"],
            nodes.valkey,
            outside,
            name,
        )
        self.got: list[Any] = []
        self._taker = self.node.client(socket_timeout=None)
        self._waiter = threading.Thread(target=self._wait)

    def before(self) -> None:
        """What is under way when it befalls."""
        self.node.say("S.PUT", "tick", "EVERY", 500, "ticks", "x")
        self._put("kept", 0)
        self._waiter.start()
        until(lambda: self.node.metric("tidewarden_resp_waiting") >= 1)

    def _wait(self) -> None:
        self.got.append(
            self._taker.execute_command("Q.TAKE", "WAIT", 600_000, "FROM", f"waited-{self.name}")
        )

    def _put(self, account: str, life_s: int) -> None:
        fields = {
            "refresh_token": f"{account}{self.name}.0",
            "access_token": "a",
            "expires_in": life_s or 2,
        }
        self.node.say("T.PUT", f"p/{account}{self.name}", json.dumps(fields))

    def after(self) -> None:
        """Each of it, begun anew."""
        node, name = self.node, self.name
        until(node.ready, WORK_S)
        done: dict[str, float] = {}
        begun = time.monotonic()

        def goes_on(what: str, condition: Any) -> None:
            until(condition, WORK_S, what=what)
            done[what] = round(time.monotonic() - begun, 1)

        ticks = stats(node, "ticks")["ready"]
        generation = node.say("T.GET", f"p/kept{name}", "WAIT", 20_000)[3]
        told = len(self.outside.hooks.got)
        node.say("Q.PUT", f"waited-{name}", "x", "DELAY", 300)
        self._put("new", 0)
        self._put("down", 0)
        self._leave("SESSION", "GRACE", 400)
        self._leave("PING")
        node.say("V.ROTATE")
        goes_on("a take that waited has its task", lambda: self.got)
        goes_on("wake-ups are heard", self._hears)
        goes_on("ticks of a schedule", lambda: stats(node, "ticks")["ready"] > ticks + 2)
        goes_on(
            "sessions end with their grace, connections at once",
            lambda: stats(node, "held")["ready"] == 2,
        )
        goes_on("companion tasks", lambda: node.say("Q.PEEK", "books", f"books:p/new{name}"))
        goes_on(
            "refreshes of what was there",
            lambda: node.say("T.GET", f"p/kept{name}")[3] > generation + 1,
        )
        goes_on("refreshes of what is new", lambda: node.say("T.GET", f"p/new{name}")[3] > 2)
        goes_on(
            "events, and their webhooks",
            lambda: any(f"p/down{name}" in str(one) for one in self.outside.hooks.got[told:]),
        )
        goes_on("a rotation", lambda: self._rotation() == "done")
        print(f"{name}: {done}")
        node.say("Q.PURGE", "held")
        node.say("T.DELETE", f"p/down{name}")

    def _leave(self, *words: object) -> None:
        """A consumer that goes with a task in its hand."""
        with self.node.client() as client:
            client.execute_command(*words)
            client.execute_command("Q.PUT", "held", "x")
            assert client.execute_command("Q.TAKE", "FROM", "held")

    def _hears(self) -> bool:
        with self.store.client() as store:
            ((_, listeners),) = store.pubsub_numsub(
                f"{{{CLUSTER}}}:wake:{self.node.status()['holder']}"
            )
            return bool(listeners)

    def _rotation(self) -> str:
        return str(mapped(mapped(self.node.say("V.STATUS"))["rotation"])["state"])
