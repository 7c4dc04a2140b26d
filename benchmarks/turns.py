"""
How long the loop of a node is held by one request: processor time of its longest turn.

    python -m benchmarks.turns [--part N] [--only TEXT] [--most FACTOR]

A node with 10,000 queues, 20,000 tasks, 5,000 accounts, 1,000 schedules and 1,000 consumers runs
here on a loop that measures each of its turns; another thread asks it everything that verbs and
routes offer, one after the other, as an administrator, as a user with 121 patterns, and as one
without any right.
Of each request the least of three is told: a turn has other things in it now and then.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import itertools
import json
import logging
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import redis

from benchmarks.ports import free_ports
from tidewarden.clock import SystemClock
from tidewarden.config.load import load
from tidewarden.config.secret import hash_generated
from tidewarden.node.daemon import Daemon
from tidewarden.node.os_process import raise_file_limit
from tidewarden.server.http.authorization import ROUTES
from tidewarden.server.verbs.table import COMMANDS

SECRET = "0123456789abcdef0123456789abcdef"
LIMIT_MS = 10.0
TIMES = 3
SETTLE_S = 0.03
PACE_S = 0.015  # what :func:`pace` takes there
SLOW_S = 5.0  # what takes longer is asked once
QUEUES, TASKS_EACH, ACCOUNTS, SCHEDULES, CONSUMERS = 10_000, 2, 5_000, 1_000, 1_000
PATTERNS = 121
CONFIG = """
[node]
name = "n0"
base_port = {port}
data_dir = "{folder}/n0"
[limits]
queues_max = 20000
user_share = 1
[log]
level = "error"
[providers.shop]
token_url = "http://127.0.0.1:9/token"
client_id = "c0"
client_secret = "not a secret"
[[users]]
name = "admin"
secret_hash = "{hash}"
[[users]]
name = "narrow"
secret_hash = "{hash}"
rights = {patterns}
[[users]]
name = "nobody"
secret_hash = "{hash}"
rights = []
"""
# Asked of each user as they stand; what changes something does so where nothing is.
VERBS = """
PING
ECHO x
CLIENT LIST
INFO
TIME
COMMAND
COMMAND DOCS
SESSION
Q.PUT q5.0 x
Q.TAKE FROM q5.0
Q.TAKE COUNT 1000 FROM q5.0
Q.ACK q5.0 id 1
Q.RELEASE q5.0 id 1
Q.FAIL q5.0 id 1
Q.TOUCH q5.0 id 1
Q.BURY q5.0 id 1
Q.KICK q5.0 COUNT 1
Q.KICK q5.0 ID id PAYLOAD x
Q.UPDATE q5.0 id PRIORITY 3
Q.DELETE q5.0 id
Q.PEEK q5.0 id
Q.PEEK big STATE delayed COUNT 1000
Q.PEEK big STATE delayed COUNT 1000 MATCH *x*
Q.PEEK big STATE delayed MATCH *y*
Q.PEEK big STATE delayed MATCH *y* IN id
Q.PEEK long STATE delayed MATCH SLOW
Q.PEEK long STATE delayed MATCH x*
Q.PEEK nested STATE delayed WHERE $[0][0]=x
Q.WAIT q5.0 id 0
Q.PAUSE q5.0 MS 1
Q.RESUME q5.0
Q.STATS
Q.STATS q5.0
Q.LIST
Q.LIST TOPICS
Q.LINK t1 q5.0
Q.UNLINK t1 q5.0
Q.CONFIG q5.0
Q.CONFIG q5.0 SET lease_ms 30000
Q.PURGE q5.1
Q.PURGE q5.1 STATE buried REASON x
Q.RELEASEALL q5.1
Q.RELEASEALL q5.1 SESSION 6f1c5b9e-7d0a-4c38-9b6e-0a5d3c1e8f42
Q.HOLDERS held
Q.REASONS q5.0
Q.DROP q5.3
Q.DROPTOPIC t2
Q.MOVE q5.1 COUNT 1 TO q5.2
Q.CHECK q5.1
Q.CHECK *
T.PUT shop/made {"access_token":"a","expires_in":86400,"refresh_token":"r"}
T.GET shop/a0
T.MGET MANY
T.LIST
T.LIST COUNT 1000
T.PEEK shop/a0
T.ANSWERS shop/a0
T.WHY shop/a0
T.WHY shop
T.PROVIDER RELEASE shop
T.REFRESH shop/none
T.DELETE shop/none
T.CONNECT shop/none
T.DEVICE shop/none
T.STATS
T.EXPORT KEY ID 1 COUNT 1000
T.IMPORT KEY ID 1 EXPORTED
V.STATUS
V.ROTATE
P.PUT made {"token_url":"https://a.example/token","client_id":"c","client_secret":"s"}
P.PUT made UNKNOWN
P.PUT made HOSTS
P.PUT made PATTERNS
P.GET none
P.LIST
P.DELETE none
S.PUT made EVERY 100000 q5.0 x
S.LIST
S.DELETE none
S.PAUSE none
S.RESUME none
S.RUN none
S.GET s5
S.GET none
S.NEXT
L.ACQUIRE lock 5
L.RENEW lock 1 5
L.RELEASE lock 1
L.PEEK lock
L.LIST
R.STATUS
R.AUDIT COUNT 1000
R.TRANSFER
R.JOIN n9 127.0.0.1:9
R.LEAVE n9
R.BACKUP
R.BACKUP DROP none
R.SWITCHOVER
R.RECOVER
R.CONFIRM
R.DISCARDED
R.TRAFFIC
R.TAP MS 1
R.CONSUMERS COUNT 500
CLIENT KILL NAME nobody
SESSION END 6f1c5b9e-7d0a-4c38-9b6e-0a5d3c1e8f42
"""
LEFT_OUT = {
    # what ends or changes a connection
    *("HELLO", "AUTH", "QUIT", "RESET", "SELECT", "MULTI", "EXEC", "DISCARD"),
}
KEY, ID = "0f" * 32, "1e" * 16
"""Of a file of sealed accounts, as T.EXPORT takes them."""
FILLED = {
    "{provider}/{account}": "shop/a0", "{provider}": "shop", "{queue}": "q5.0", "{topic}": "t1",
    "{name}": "none", "{lock}": "lock", "{id}": "id", "{backup}": "none", "{file}": "main.js",
    "{session}": "6f1c5b9e-7d0a-4c38-9b6e-0a5d3c1e8f42",
}  # fmt: skip
QUERIES = {
    "GET /v1/tokens": "?count=1000",
    "GET /v1/audit": "?count=1000",
    "GET /v1/tap": "?ms=1",
    "GET /v1/queues/{queue}/tasks": "?state=delayed&count=1000",
    "GET /v1/queues/{queue}/buried": "?match=*x*&where=$.a=1",
}
SLOW = "*" + "x*" * 400 + "x" * 90 + "y*"
"""A glob that is much work where nothing but x is: its last part begins everywhere."""
STREAMS = {"GET /v1/events", "POST /console/login"}
UNKNOWN = {f"setting{n}": "x" for n in range(700)}
HOSTS = {"a": "|".join(f"h{n}" for n in range(190))}
READ_LONG = {f"p{n}": f"([a-z]{{1,{100 + n}}}|[0-9]{{2,{50 + n}}}x*)+" for n in range(5)}
"""Settings of providers that are much work: unknown ones, a list of hosts, and patterns."""
RUBBISH = b"[" + b"[]," * 349_000 + b"[]]"


class TurnMeter(asyncio.SelectorEventLoop):
    """Measures the processor time of each turn."""

    longest_s = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]  # no public name
        self.longest_s = max(self.longest_s, time.thread_time() - began)


@contextlib.contextmanager
def node(folder: Path) -> Iterator[tuple[int, TurnMeter]]:
    """A running node: its first port, and the loop it runs on in a thread of its own."""
    port = free_ports(5)
    patterns = [f"{['put', 'take', 'stats', 'admin'][n % 4]}:q{n}*" for n in range(PATTERNS)]
    config = folder / "n0.toml"
    settings = {"port": port, "folder": folder, "hash": hash_generated(SECRET)}
    config.write_text(CONFIG.format(**settings, patterns=json.dumps(patterns)))
    loaded = load(config, {}, {})
    loop, started = TurnMeter(), threading.Event()
    daemons: list[Daemon] = []

    async def run() -> None:
        daemons.append(Daemon(loaded, SystemClock(), raise_file_limit(loaded.limits)))
        started.set()
        await daemons[0].run()

    thread = threading.Thread(target=lambda: loop.run_until_complete(run()), daemon=True)
    thread.start()
    started.wait(60)
    try:
        yield port, loop
    finally:
        loop.call_soon_threadsafe(daemons[0].stopping.set)
        thread.join(60)


def connected(port: int, user: str) -> redis.Redis:
    """A connection once the node serves."""
    client = redis.Redis(port=port, username=user, password=SECRET, protocol=2, socket_timeout=600)
    client.response_callbacks.clear()
    until = time.monotonic() + 60
    while True:
        try:
            client.ping()
            return client
        except redis.ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)


def seed(client: redis.Redis, part: int) -> None:
    """Makes what there is to look at, or one of so many parts of it."""

    def send(requests: Iterator[tuple[Any, ...]]) -> None:
        pipe = client.pipeline(transaction=False)
        for number, words in enumerate(requests, 1):
            pipe.execute_command(*words)
            if not number % 500:
                pipe.execute()
        pipe.execute()

    send(
        ("Q.PUT", f"q{n % 200}.{n // 200}", "x", "DELAY", 3_600_000)
        for n in range(QUEUES // part)
        for _ in range(TASKS_EACH)
    )
    send(("Q.PUT", "big", "x" * 100, "DELAY", 3_600_000) for _ in range(1000))
    send(("Q.PUT", "long", "x" * 2**20, "DELAY", 3_600_000) for _ in range(20))
    nested = "[" + "[]," * 21_000 + "[]]"
    send(("Q.PUT", "nested", nested, "DELAY", 3_600_000) for _ in range(100))
    grant = {"access_token": "a" * 40, "expires_in": 86_400}
    send(
        ("T.PUT", f"shop/a{n}", json.dumps(grant | {"refresh_token": f"{n:040}"}))
        for n in range(ACCOUNTS // part)
    )
    send(
        ("S.PUT", f"s{n}", "EVERY", 3_600_000, f"q{n % 200}.0", "x")
        for n in range(SCHEDULES // part)
    )


def _provider(url: str, patterns: Mapping[str, str]) -> str:
    """The settings of one whose accounts differ by these patterns, each of them in use."""
    headers = {f"x-{name}": f"{{{name}}}" for name in patterns}
    names = {"client_id": "c", "client_secret": "s", "headers": headers}
    return json.dumps({"token_url": f"{url}/token", "account_parameters": patterns} | names)


def consuming(port: int, part: int) -> list[redis.Redis]:
    """Connections, each of which holds a task."""
    made = [connected(port, "admin") for _ in range(CONSUMERS // part)]
    for client in made:
        client.execute_command("Q.PUT", "held", "x", "LEASE", 3_600_000)
        assert client.execute_command("Q.TAKE", "FROM", "held")
    return made


def asked_of_resp(
    client: redis.Redis, filled: Mapping[str, Sequence[Any]]
) -> Iterator[tuple[str, Callable[[], Any]]]:
    """What is asked at the RESP door: a name, and what asks it; ``filled``: for words of it."""

    def asking(words: list[Any]) -> Callable[[], Any]:
        def ask() -> Any:
            try:
                return client.execute_command(*words)
            except redis.ResponseError as error:
                return error

        return ask

    for line in VERBS.split("\n"):
        if line:
            words = [filled.get(word, (word,)) for word in line.split(" ")]
            yield line, asking([*itertools.chain(*words)])


def asked_of_http(port: int, user: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Likewise at the HTTP door."""
    headers = {"Authorization": f"Bearer {user}:{SECRET}"}

    def asking(method: str, path: str, body: bytes) -> Callable[[], Any]:
        def ask() -> Any:
            connection = http.client.HTTPConnection("127.0.0.1", port + 1, timeout=60)
            try:
                connection.request(method, path, body or None, headers)
                return connection.getresponse().read()
            finally:
                connection.close()

        return ask

    many = json.dumps({"accounts": [f"shop/a{n}" for n in range(1000)]}).encode()
    yield "POST /v1/tokens:read of 1,000", asking("POST", "/v1/tokens:read", many)
    path = "/v1/queues/long/tasks?state=delayed&match=x*"
    yield f"GET {path}", asking("GET", path, b"")
    for route in ROUTES.values():
        name = f"{route.method} {route.path}"
        if name in STREAMS:
            continue
        path = route.path
        for key, value in FILLED.items():
            path = path.replace(key, value)
        yield name, asking(route.method, path + QUERIES.get(name, ""), b"")
        if route.method in ("POST", "PUT", "PATCH"):
            yield f"{name}, 1 MiB of [],", asking(route.method, path, RUBBISH)


def measured(loop: TurnMeter, ask: Callable[[], Any]) -> float:
    """The longest turn while this is asked, ms: the least of some times."""
    found = []
    for _ in range(TIMES):
        time.sleep(SETTLE_S)
        loop.longest_s = 0.0
        began = time.monotonic()
        ask()
        time.sleep(SETTLE_S)
        found.append(loop.longest_s * 1000)
        if found[-1] < LIMIT_MS / 2 or time.monotonic() - began > SLOW_S:
            break
    return min(found)


def main() -> None:
    """Print a table of the requests with the longest turns."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--part", type=int, default=1, help="one of so many parts of everything")
    parser.add_argument("--most", type=float, default=0, help="fail above so many times the limit")
    parser.add_argument("--only", default="", help="requests with this in their names")
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    known = {line.split()[0] for line in VERBS.split("\n") if line}
    missing = {one.name for one in COMMANDS.values()} - known - LEFT_OUT
    assert not missing, f"not asked: {missing}"
    with tempfile.TemporaryDirectory() as folder, node(Path(folder)) as (port, loop):
        admin = connected(port, "admin")
        seed(admin, options.part)
        holding = consuming(port, options.part)
        filled = {
            "MANY": [f"shop/a{n % (ACCOUNTS // options.part)}" for n in range(1000)],
            "EXPORTED": admin.execute_command("T.EXPORT", KEY, ID, 1, "COUNT", 1000)[0],
            "UNKNOWN": [json.dumps(UNKNOWN)],
            "HOSTS": [_provider(f"https://{{a}}.{'x.' * 110}example", HOSTS)],
            "PATTERNS": [_provider("https://a.example", READ_LONG)],
            "SLOW": [SLOW],
            "KEY": [KEY],
            "ID": [ID],
        }
        rows = []
        for user in ("admin", "narrow", "nobody"):
            asked = [*asked_of_resp(connected(port, user), filled), *asked_of_http(port, user)]
            for name, ask in asked:
                if options.only in name:
                    rows.append((measured(loop, ask), user, name))
        rows.sort(reverse=True)
        for client in holding:
            client.close()
        over = [row for row in rows if row[0] > LIMIT_MS]
        print(f"{len(rows)} requests, {len(over)} with a turn of more than {LIMIT_MS:g} ms\n")
        print("| longest turn | user | request |\n| ---: | --- | --- |")
        for longest_ms, user, name in rows[: max(20, len(over))]:
            print(f"| {longest_ms:.1f} ms | {user} | `{name}` |")
    most_ms = LIMIT_MS * options.most * pace()
    if options.most and rows[0][0] > most_ms:
        sys.exit(f"a turn of more than {most_ms:.1f} ms")


def pace() -> float:
    """How many times slower this machine is than the one of docs/performance.md; at least 1."""
    began = time.thread_time()
    sum(len(str(number)) for number in range(200_000))
    return max(1.0, (time.thread_time() - began) / PACE_S)


if __name__ == "__main__":
    main()
