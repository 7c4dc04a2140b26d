"""
What goes on by itself goes on after whatever befell the store: silent for twenty seconds, loading,
refusing every script, or with keys that some scripts cannot read.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import pytest
import redis
from support.cluster.harness import CLUSTER, Cluster, Node, cluster, until

pytestmark = pytest.mark.timeout(600)

SILENT_S = 20.0
WORK_S = 60.0
"""What each loop gets to show that it goes on."""


class Outside(ThreadingHTTPServer):
    """
    A provider whose tokens live for five seconds, with accounts (``down…``) that it fails; and a
    webhook, which keeps what it gets.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.told: list[str] = []
        self.url = f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Outside
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if self.path == "/hook":
            self.server.told.append(body)
            self._say(204, b"")
            return
        account, _, number = parse_qs(body)["refresh_token"][0].partition(".")
        if account.startswith("down"):
            self._say(503, b"{}")
            return
        pair = {
            "access_token": f"at.{account}.{number}",
            "refresh_token": f"{account}.{int(number) + 1}",
        }
        self._say(200, json.dumps({**pair, "token_type": "Bearer", "expires_in": 5}).encode())

    def _say(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def outside() -> Iterator[Outside]:
    with Outside() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, outside: Outside
) -> Iterator[Cluster]:
    extra = (
        f'[providers.p]\ntoken_url = "{outside.url}/token"\nclient_id = "c"\nclient_secret ='
        ' "s"\nmargin_s = 2.0\n[events]\nfailing_s = 1\n[companions.books]\nqueue ='
        f' "books"\n[webhooks.ops]\nurl = "{outside.url}/hook"\nsecret ='
        f' "whsec_{base64.b64encode(secrets.token_bytes(32)).decode()}"\n'
    )
    with cluster(
        request, tmp_path_factory.mktemp("loops"), nodes=1, extra=extra, node__processes="2"
    ) as made:
        yield made


@contextlib.contextmanager
def silent(nodes: Cluster) -> Iterator[None]:
    nodes.valkey.freeze()
    yield
    nodes.valkey.thaw()


@contextlib.contextmanager
def loading(nodes: Cluster) -> Iterator[None]:
    """It has what clients need to log in, and tells them that it loads."""
    valkey = nodes.valkey
    former = dict(valkey.options)
    with valkey.client() as store, store.pipeline(transaction=False) as pipe:
        for number in range(5000):
            pipe.set(f"filler:{number}", "x" * 500)
        pipe.execute()
    valkey.kill()
    valkey.options |= {
        "requirepass": valkey.password, "key-load-delay": "1000", "loading-process-events-interval-bytes": "2048",
        "enable-debug-command": "yes",
    }  # fmt: skip
    valkey.launch()
    with valkey.client() as store:
        until(lambda: "loading:1" in _said(store), what="it loads")
    yield
    with valkey.client() as store:
        until(lambda: store.ping(), 60, what="it has loaded")
    valkey.options.clear()
    valkey.options |= former


def _said(store: redis.Redis) -> str:
    return f"loading:{store.info('persistence')['loading']}"


@contextlib.contextmanager
def refusing(nodes: Cluster) -> Iterator[None]:
    scripts = ("evalsha", "eval", "fcall")
    with nodes.valkey.client() as store:
        store.execute_command(
            "ACL", "SETUSER", "default", *(f"-{name}" for name in scripts), "-subscribe"
        )
        store.client_kill_filter(_type="pubsub")
        yield
        store.execute_command(
            "ACL", "SETUSER", "default", *(f"+{name}" for name in scripts), "+subscribe"
        )


@contextlib.contextmanager
def unreadable(nodes: Cluster) -> Iterator[None]:
    """Keys of another type in the places of the sessions' graces, the events and the clock."""
    names = [f"{{{CLUSTER}}}:{name}" for name in ("session:graces", "events", "clock")]
    with nodes.valkey.client() as store:
        kept = {name: store.dump(name) for name in names}
        for name in names:
            store.delete(name)
            store.set(name, "of another type")
        yield
        for name in names:
            store.delete(name)
            if kept[name] is not None:
                store.restore(name, 0, kept[name])


def stats(node: Node, queue: str) -> dict[str, Any]:
    flat = node.say("Q.STATS", queue)
    return flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))


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
        told = len(self.outside.told)
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
            lambda: any(f"p/down{name}" in one for one in self.outside.told[told:]),
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
        flat = self.node.say("V.STATUS")
        found = flat if isinstance(flat, dict) else dict(zip(flat[::2], flat[1::2], strict=True))
        rotation = found["rotation"]
        rotation = (
            rotation
            if isinstance(rotation, dict)
            else dict(zip(rotation[::2], rotation[1::2], strict=True))
        )
        return str(rotation["state"])


@pytest.mark.parametrize(
    ("what", "for_s"), [(silent, SILENT_S), (loading, 0.0), (refusing, 8.0), (unreadable, 8.0)],
    ids=["silent", "loading", "refusing", "unreadable"],
)  # fmt: skip
def test_everything_goes_on(nodes: Cluster, outside: Outside, what: Any, for_s: float) -> None:
    node = nodes.nodes["n0"]
    until(node.ready, WORK_S)
    epoch, pid = node.status()["epoch"], node.pid
    work = Work(nodes, outside, what.__name__)
    work.before()
    with what(nodes):
        time.sleep(for_s)
        assert node.http("/health/live").status_code == 200
    work.after()
    assert node.pid == pid
    shown = node.http("/metrics").text
    for duty in ("sweep", "reaper"):
        assert f'tidewarden_node_leader_duty_late_seconds{{kind="{duty}"}} ' in shown
    assert "tidewarden_node_leader_duties_begun_anew_total 0.0" in shown
    if what is unreadable:
        assert node.status()["epoch"] == epoch, "what goes wrong with sessions ends no term"
