"""
Makes the data folder that ``live/data_folders/test_earlier_release.py`` has today's nodes serve.

It is run by hand, with the release that is to write the folder::

    python tests/support/data_folders/make.py RELEASE/.venv/bin/tidewarden data_of_0_1.tar.xz

It runs ``tidewarden up`` of that release, fills queues, locks, schedules and accounts by the wire
alone, kills every process by SIGKILL while requests to the provider are under way, and packs the
folder. Beside it lies ``made.json``: what the release answered of all of it before it died, and
what only the maker knows (lease numbers, fences, which refresh tokens the provider saw).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import tomllib
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import redis

BASE_PORT = 17_420
"""Of the release that writes. Who serves the folder later may have other ports."""
FAR_MS = 4_102_444_800_000
"""The first of January 2100: a time that no run of the test comes near."""
DAY_MS = 86_400_000
MANY = 400
EXPORT_KEY, EXPORT_ID = "5a" * 32, "a5" * 16
HOOK_SECRET = "whsec_" + base64.b64encode(b"secret of the webhook's receiver").decode()
READER_SECRET = "secret-of-the-reader"
SESSION = "9f6a2c1e-5b7d-4c55-8a9e-0d6c3a1f2b44"
LEFT_OUT = {"node.toml", "valkey.conf"}
"""They name this machine's folders, and ``up`` writes them anew."""

SETTINGS = """
[node]
base_port = 17420
[store]
fsync = "everysec"
[events]
failing_s = 1.0
[[users]]
name = "reader"
secret_hash = "sha256$@READER@"
rights = ["take:mail", "stats", "token:read"]

[providers.shop]
token_url = "http://127.0.0.1:@PORT@/shop/token"
client_id = "c0"
client_secret = "secret-of-the-client"
rotation = "single_use"
scope = ""
extras = ["instance_url"]
margin_s = 5.0
timeout_s = 20.0
[providers.bank]
token_url = "http://127.0.0.1:@PORT@/bank/token"
client_id = "c1"
client_secret = "secret-of-the-client"
auth = "post"
rotation = "single_use"
grace_s = 3600.0
margin_s = 5.0
timeout_s = 20.0
host_rate = 200.0
[providers.atlas]
token_url = "http://127.0.0.1:@PORT@/atlas/{region}/token"
client_id = "c2"
client_secret = "secret-of-the-client"
rotation = "rolling"
account_parameters = { region = "[a-z]{2}" }
margin_s = 5.0
[providers.robots]
token_url = "http://127.0.0.1:@PORT@/robots/token"
client_id = "c3"
client_secret = "secret-of-the-client"
grant = "client_credentials"
scope = "read"

[webhooks.ops]
url = "http://127.0.0.1:@PORT@/hook"
secret = "@HOOK@"
events = ["account.*"]

[companions.contacts]
queue = "contacts.sync"
providers = ["bank"]
interval_s = 86400.0
payload = '{"account": "{account}"}'
"""


class Provider(http.server.ThreadingHTTPServer):
    """
    Serves as an authorization server that notes each refresh token, and as a webhook's receiver.

    A refresh token is ``PROVIDER.ACCOUNT.N``, and its use gives ``N + 1``. ``rules`` say what
    becomes of an account's requests: ``refused``, ``erring``, ``page`` (HTML with 200), ``held``
    (no answer before ``let_go``), ``silent`` (none at all); else they are answered.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.rules: dict[str, str] = {}
        self.seen: list[tuple[str, str]] = []
        """Path and refresh token (of those without, the grant) of each request, in their order."""
        self.hooks: list[tuple[str, dict[str, Any]]] = []
        """Id and body of each webhook that was answered well."""
        self.deaf = False
        """Whether webhooks are answered 503."""
        self.let_go = threading.Event()
        self.port = int(self.server_address[1])
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def count(self, token: str) -> int:
        """Return how often that refresh token came."""
        return sum(shown == token for _, shown in self.seen)


class _Request(http.server.BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"] or 0))
        if self.path == "/hook":
            if not self.server.deaf:
                self.server.hooks.append((self.headers["webhook-id"], json.loads(body)))
            self._answer(503 if self.server.deaf else 204, b"")
            return
        form = dict(urllib.parse.parse_qsl(body.decode()))
        token = form.get("refresh_token", form["grant_type"])
        self.server.seen.append((self.path, token))
        name, _, number = token.rpartition(".")
        rule = self.server.rules.get(name, "")
        if rule == "silent":
            threading.Event().wait(60)
        elif rule == "held":
            self.server.let_go.wait(60)
        if rule == "refused":
            self._json(400, {"error": "invalid_grant"})
        elif rule == "erring":
            self._json(500, {"error": "server_error"})
        elif rule == "page":
            self._answer(200, b"<html>Please sign in</html>", "text/html")
        elif not name:
            life = {
                "access_token": f"access-{len(self.server.seen)}",
                "token_type": "Bearer",
                "expires_in": 31_000_000,
            }
            self._json(200, life | {"scope": form.get("scope", "")})
        else:
            following = f"{name}.{int(number) + 1}"
            pair = {
                "access_token": f"access-{following}",
                "refresh_token": following,
                "token_type": "Bearer",
            }
            self._json(
                200,
                pair | {"expires_in": 31_000_000, "instance_url": f"https://{name}.example.org"},
            )

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._answer(status, json.dumps(body).encode(), "application/json")

    def _answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        with contextlib.suppress(OSError):  # who asked was killed
            self.send_response(status)
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing is printed."""


READING = frozenset(
    {"Q.CHECK", "Q.CONFIG", "Q.LIST", "Q.PEEK", "Q.STATS", "R.STATUS", "S.LIST", "L.LIST", "T.EXPORT",
     "T.LIST", "T.PEEK", "T.STATS", "V.STATUS"}
)  # fmt: skip
"""Requests that may be made again whatever became of the first."""


class Node:
    """Asks one node of the cluster that serves ``folder``."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder, self.port = folder, port
        self.secret = (folder / "secrets" / "admin.secret").read_text().strip()
        self.client = self.connect()

    def connect(self, user: str = "admin", secret: str = "") -> redis.Redis:
        """Open a connection of its own, which holds what it takes."""
        return redis.Redis(
            port=self.port, username=user, password=secret or self.secret, protocol=3,
            decode_responses=True, encoding_errors="surrogateescape",
            single_connection_client=True, socket_timeout=60,
        )  # fmt: skip

    def ask(self, *words: str | bytes | float) -> Any:
        """Return the answer to a request. What only reads is read again from a new primary."""
        give_up = time.monotonic() + 60
        while True:
            try:
                return self.client.execute_command(*words)
            except redis.ResponseError as error:
                moved = str(error).startswith("STOREDOWN") and words[0] in READING
                if not moved or time.monotonic() > give_up:
                    raise
            time.sleep(0.1)

    def get(self, path: str) -> str:
        """Return the text of a route of HTTP; of a stream, what comes within two seconds."""
        import httpx

        text = ""
        headers = {"Authorization": f"Bearer admin:{self.secret}"}
        with httpx.stream(
            "GET", f"http://127.0.0.1:{self.port + 1}{path}", headers=headers, timeout=2
        ) as answer:
            answer.raise_for_status()
            with contextlib.suppress(httpx.ReadTimeout):
                for piece in answer.iter_text():
                    text += piece
        return text


def events_of(node: Node) -> list[dict[str, Any]]:
    """Return the events of accounts and providers that the store keeps."""
    lines = node.get("/v1/events?after=0").splitlines()
    return [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]


def metric_names(node: Node) -> set[str]:
    """Return the names of all figures of ``/metrics``."""
    lines = node.get("/metrics").splitlines()
    return {line.split()[2] for line in lines if line.startswith("# TYPE ")}


def exported(node: Node) -> dict[str, dict[str, Any]]:
    """Return every account with its tokens in the clear, by way of a sealed export."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    found: dict[str, dict[str, Any]] = {}
    cursor, number = "", 1
    while True:
        words = [] if not cursor else ["AFTER", cursor]
        lines, cursor, unreadable = node.ask("T.EXPORT", EXPORT_KEY, EXPORT_ID, number, *words)
        assert not unreadable, unreadable
        for line in lines:
            raw = base64.b64decode(line)
            associated = (
                b"tidewarden export" + bytes.fromhex(EXPORT_ID) + number.to_bytes(8, "big") + b"\0"
            )
            row = json.loads(
                AESGCM(bytes.fromhex(EXPORT_KEY)).decrypt(raw[:12], raw[12:], associated)
            )
            found[row["account"]] = row
            number += 1
        if not cursor:
            return found


def first_token(account: str) -> str:
    """Return the refresh token that an account is put with."""
    return urllib.parse.quote(account.replace("/", ".", 1), safe="@") + ".0"


def until(condition: Callable[[], Any], what: str, limit_s: float = 60) -> Any:
    """Wait until ``condition()`` is true, and return what it returned."""
    end = time.monotonic() + limit_s
    while not (value := condition()):
        if time.monotonic() > end:
            sys.exit(f"not within {limit_s:g} s: {what}")
        time.sleep(0.05)
    return value


class Up:
    """Runs ``tidewarden up`` of the release."""

    def __init__(self, program: str, folder: Path, nodes: int) -> None:
        self.folder = folder
        self.output = folder.parent / "up.log"
        words = [
            "up",
            "--nodes",
            str(nodes),
            "--data-dir",
            str(folder),
            "--config",
            str(folder.parent / "config.toml"),
        ]
        with self.output.open("wb") as file:
            self.process = subprocess.Popen(
                [program, *words], stdout=file, stderr=subprocess.STDOUT
            )
        until(
            lambda: "READY" in self.output.read_text() or self.process.poll() is not None,
            f"{nodes} nodes serve",
        )
        if self.process.poll() is not None:
            sys.exit(self.output.read_text())

    def end(self) -> None:
        """End it as a user does."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)

    def kill(self) -> None:
        """Kill it by SIGKILL, at which the kernel kills its store and nodes."""
        self.process.kill()
        self.process.wait(60)
        until(lambda: not processes_in(self.folder), "every process is gone")


def processes_in(folder: Path) -> dict[int, str]:
    """Find the processes whose command line names the folder, or that work in it."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            line += str((entry / "cwd").readlink())
            if str(folder) in line and int(entry.name) != os.getpid():
                found[int(entry.name)] = line
    return found


def fill_queues(
    node: Node, plain: redis.Redis, session: redis.Redis, leases: dict[str, int]
) -> None:
    """Put tasks in every state into queues of every kind; note the ``leases`` that stay held."""
    ask = node.ask
    ask(
        "Q.CONFIG",
        "mail",
        "SET",
        "dedup_ms",
        30 * DAY_MS,
        "losses_max",
        3,
        "history",
        7,
        "backoff_cap_ms",
        366 * DAY_MS,
    )
    for task_id, words in {
        "ready": ["PRIORITY", 60],
        "first": ["PRIORITY", 5, "DEADLINE", FAR_MS, "LEASE", 7000, "ATTEMPTS", 4, "BACKOFF", 1500],
        "second": ["PRIORITY", 5],
        "far": ["AT", FAR_MS, "DEADLINE", FAR_MS + 1, "PRIORITY", 1],
        "soon": ["DELAY", 60_000, "PRIORITY", 70],
        "expires": ["AT", FAR_MS, "TTL", 60_000],
        "lives": ["PRIORITY", 80, "TTL", 40 * 366 * DAY_MS],
    }.items():
        ask("Q.PUT", "mail", f"payload of {task_id}", "ID", task_id, *words)
    ask("Q.PUT", "mail", bytes(range(256)), "ID", "bytes", "PRIORITY", 90)
    ask("Q.PUT", "mail", "long " * 20_000, "ID", "long", "PRIORITY", 91)
    for priority, task_id in enumerate(
        ("done", "buried", "failed", "worn", "left", "kept", "deleted"), start=40
    ):
        words = ["ATTEMPTS", 1] if task_id == "worn" else []
        ask("Q.PUT", "mail", f"payload of {task_id}", "ID", task_id, "PRIORITY", priority, *words)

    def taken(task_id: str, client: redis.Redis = node.client, lease_ms: int = 30 * DAY_MS) -> int:
        answer = client.execute_command("Q.TAKE", "LEASE", lease_ms, "ID", task_id, "FROM", "mail")
        return int(answer[0][2])

    ask("Q.ACK", "mail", "done", taken("done"), "RESULT", "the result of done")
    ask("Q.BURY", "mail", "buried", taken("buried"), "REASON", "put aside")
    for reason in ("http 502", "http 503"):
        ask("Q.FAIL", "mail", "failed", taken("failed"), "DELAY", 0, "REASON", reason)
    ask(
        "Q.FAIL",
        "mail",
        "failed",
        taken("failed"),
        "DELAY",
        30 * 366 * DAY_MS,
        "REASON",
        "http 504",
    )
    ask("Q.FAIL", "mail", "worn", taken("worn"), "REASON", "its only attempt")
    ask("Q.DELETE", "mail", "deleted")
    leases |= {"left": taken("left", plain), "kept": taken("kept", session)}

    ask(
        "Q.CONFIG", "wide", "SET", "shards", 4, "strategy", "round_robin", "order", "edf",
        "lease_ms", 45_000, "urgent_ms", 5000, "urgent_max_ms", 9000, "late_share", 4,
        "early_share", 6, "dedup_ms", DAY_MS, "losses_max", 0, "backoff_cap_ms", 77_000,
        "history", 0, "capacity", 400, "lane_limit", 3, "lane_rate", "0.125", "lane_burst", 2,
    )  # fmt: skip
    for number in range(12):
        ask("Q.PUT", "wide", f"wide {number}", "DEADLINE", FAR_MS + 100 - number)
    for number in range(4):
        ask("Q.PUT", "wide", f"wide later {number}", "AT", FAR_MS + number)

    ask("Q.CONFIG", "lanes", "SET", "lane_limit", 1)
    for lane in ("north", "south"):
        for number in range(3):
            ask("Q.PUT", "lanes", f"{lane} {number}", "ID", f"{lane}-{number}", "LANE", lane)
    (_, _, leases["north-0"], *_), *_ = plain.execute_command(
        "Q.TAKE", "LEASE", 30 * DAY_MS, "ID", "north-0", "FROM", "lanes"
    )

    # Enough for more than one hash of records, and more than one piece of the delayed index.
    for number in range(MANY):
        ask("Q.PUT", "many", f"many {number}", "ID", f"ready-{number:03}", "PRIORITY", number % 100)
        ask("Q.PUT", "many", f"later {number}", "ID", f"later-{number:03}", "AT", FAR_MS + number)

    ask("Q.LINK", "orders", "billing")
    ask("Q.LINK", "orders", "shipping")
    ask("Q.PUT", "orders", "an order", "ID", "order-1")
    ask("Q.PUT", "paused", "nobody gets it", "ID", "waits")
    ask("Q.PAUSE", "paused")
    ask("Q.CONFIG", "small", "SET", "capacity", 1)
    ask("Q.PUT", "small", "it is full", "ID", "one")
    for number in range(3):
        ask("Q.PUT", "broken", f"broken {number}", "ID", f"b{number}")
        (_, task_id, lease, *_), *_ = ask("Q.TAKE", "FROM", "broken")
        ask("Q.BURY", "broken", task_id, lease, "REASON", "broken")
    ask("Q.MOVE", "broken", "COUNT", 1, "TO", "repaired")


def fill_locks(
    node: Node, plain: redis.Redis, session: redis.Redis, fences: dict[str, int]
) -> None:
    """Acquire locks by a connection and by a session, and one that is released again."""
    fences["free"] = node.ask("L.ACQUIRE", "free", 1000)
    fences["held"] = plain.execute_command("L.ACQUIRE", "held", 30 * DAY_MS)
    fences["keyed"] = plain.execute_command("L.ACQUIRE", "keyed", 30 * DAY_MS, "KEY", "the key")
    fences["of-session"] = session.execute_command("L.ACQUIRE", "of-session", 30 * DAY_MS)
    node.ask("L.RELEASE", "free", fences["free"])


def fill_schedules(node: Node, now_ms: int) -> None:
    """Put a schedule of each kind; one of them is due while nobody is there."""
    for name, words in {
        "leap": [
            "CRON",
            "30 3 29 2 *",
            "TZ",
            "Europe/Berlin",
            "CATCHUP",
            "none",
            "ticks",
            "leap day",
        ],
        "yearly": ["EVERY", 366 * DAY_MS, "CATCHUP", "none", "ticks", "a year", "PRIORITY", 7],
        "once": ["AT", FAR_MS, "ticks", "once", "DELAY", 5, "WITHIN", 9000, "ATTEMPTS", 2],
        "resting": ["EVERY", 60_000, "CATCHUP", "none", "ticks", "it is paused", "LANE", "slow"],
        "missed": ["AT", now_ms + 120_000, "CATCHUP", "one", "ticks", "a tick that was missed"],
    }.items():
        node.ask("S.PUT", name, *words)
    node.ask("S.PAUSE", "resting")


def fill_tokens(node: Node, provider: Provider) -> None:
    """Put accounts, and bring them into every state that can be had within a minute."""

    def put(account: str, **fields: Any) -> None:
        token = {} if account.startswith("robots/") else {"refresh_token": first_token(account)}
        node.ask("T.PUT", account, json.dumps(token | fields))

    def state(account: str) -> str:
        return str(node.ask("T.PEEK", account)["state"])

    def error(account: str) -> str:
        return str(node.ask("T.PEEK", account)["error"])

    for account in (
        "shop/fresh",
        "shop/größe@example.com",
        "shop/team/42",
        "bank/fresh",
        "bank/second",
        "bank/third",
    ):
        put(account)
    put("atlas/eu", parameters={"region": "eu"})
    put("robots/r1")
    for account in (
        "shop/fresh",
        "shop/größe@example.com",
        "shop/team/42",
        "bank/fresh",
        "bank/second",
        "bank/third",
    ):
        until(lambda account=account: state(account) == "fresh", f"{account} is refreshed")
    until(
        lambda: state("atlas/eu") == state("robots/r1") == "fresh",
        "those with parameters and without tokens",
    )
    node.ask("V.ROTATE")
    until(lambda: node.ask("V.STATUS")["rotation"]["state"] == "done", "the vault is rotated")
    given = {"access_token": "given-access", "token_type": "MAC", "expires_in": 31_000_000}
    put("shop/given", **given, scope="a b", consent_expires_ms=FAR_MS)
    put("shop/deleted", access_token="soon-gone", expires_in=31_000_000)
    node.ask("T.DELETE", "shop/deleted")
    provider.rules |= {
        "shop.erring": "erring",
        "shop.refused": "refused",
        "shop.page": "page",
        "shop.dead": "refused",
    }
    for account in ("shop/erring", "shop/refused", "shop/page"):
        put(account)
        until(lambda account=account: error(account), f"{account} fails")
    node.ask("T.PROVIDER", "QUARANTINE", "shop")
    put("shop/dead")
    until(lambda: error("shop/dead"), "shop/dead is refused")
    node.ask("T.PROVIDER", "RELEASE", "shop")
    until(lambda: state("shop/dead") == "dead", "shop/dead is given up")
    until(lambda: any(event["type"] == "account.dead" for event in events_of(node)), "that is told")
    node.ask("T.PROVIDER", "QUARANTINE", "atlas")


def leave_half_done(node: Node, provider: Provider, store: redis.Redis, folder: Path) -> None:
    """Leave work for the death to cut off: an untold event, open requests, an unstored answer."""
    provider.rules |= {"shop.untold": "refused", "shop.held": "silent", "bank.held": "silent"}
    provider.rules["shop.journaled"] = "held"
    node.ask("T.PROVIDER", "QUARANTINE", "shop")
    node.ask("T.PUT", "shop/untold", json.dumps({"refresh_token": "shop.untold.0"}))
    until(lambda: node.ask("T.PEEK", "shop/untold")["error"], "shop/untold is refused")
    store.execute_command("ACL", "SETUSER", "default", "-xadd")
    node.ask("T.PROVIDER", "RELEASE", "shop")
    until(lambda: node.ask("T.PEEK", "shop/untold")["state"] == "dead", "shop/untold is given up")
    node.ask(
        "T.PUT",
        "shop/due",
        json.dumps({"refresh_token": "shop.due.0", "access_token": "due", "expires_in": 90}),
    )
    node.ask("T.PUT", "shop/journaled", json.dumps({"refresh_token": "shop.journaled.0"}))
    until(lambda: provider.count("shop.journaled.0"), "shop/journaled is asked for")
    size = sum(
        path.stat().st_size
        for path in folder.glob("n*/*.journal")
        if path.name.startswith("tokens")
    )
    (pid,) = (pid for pid, line in processes_in(folder).items() if "valkey-server" in line)
    for account in ("shop/held", "bank/held"):
        node.ask("T.PUT", account, json.dumps({"refresh_token": first_token(account)}))
        until(
            lambda account=account: provider.count(first_token(account)), f"{account} is asked for"
        )
    os.kill(pid, signal.SIGSTOP)
    provider.let_go.set()
    until(
        lambda: (
            sum(
                path.stat().st_size
                for path in folder.glob("n*/*.journal")
                if path.name.startswith("tokens")
            )
            > size
        ),
        "an answer is in a journal",
    )
    time.sleep(1)


def answers(node: Node) -> dict[str, Any]:
    """Ask the release for everything that it has."""
    queues = node.ask("Q.LIST")
    tasks = {}
    for queue in queues:
        for state in ("delayed", "ready", "leased", "buried", "waiting"):
            page, _ = node.ask("Q.PEEK", queue, "STATE", state, "COUNT", 100)
            tasks |= {f"{queue} {task['id']}": task for task in page}
    found: dict[str, Any] = {
        "queues": {queue: node.ask("Q.CONFIG", queue) for queue in queues},
        "counts": {queue: node.ask("Q.STATS", queue) for queue in queues},
        "topics": node.ask("Q.LIST", "TOPICS"),
        "tasks": tasks,
        "schedules": {row["name"]: row for row in node.ask("S.LIST")},
        "locks": {row["name"]: row for row in node.ask("L.LIST")[0]},
        "accounts": {row["account"]: row for row in node.ask("T.LIST", "COUNT", 1000)[0]},
        "exported": exported(node),
        "providers": node.ask("T.STATS"),
        "vault": {name: node.ask("V.STATUS")[name] for name in ("kek", "data_key", "data_keys")},
        "events": events_of(node),
        "metrics": sorted(metric_names(node)),
        "unread": node.ask("T.ANSWERS", "shop/page"),
        "epoch": node.ask("R.STATUS")["epoch"],
    }
    return found


def configuration(program: str) -> str:
    """Return the release's ``config.toml``, which has every setting, with ours in it."""
    ours = tomllib.loads(
        SETTINGS.replace("@READER@", hashlib.sha256(READER_SECRET.encode()).hexdigest())
    )
    ours["webhooks"]["ops"]["secret"] = HOOK_SECRET
    whole = tomllib.loads((Path(program).parents[2] / "config.toml").read_text())
    for section, table in ours.items():
        whole[section] = {**whole.get(section, {}), **table} if isinstance(table, dict) else table
    return "".join(_toml(whole))


def _toml(table: dict[str, Any], path: str = "") -> Iterator[str]:
    below = {name: value for name, value in table.items() if isinstance(value, dict) and value}
    for name, value in table.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            continue
        if name not in below:
            yield f"{name} = {json.dumps(value)}\n"
    for name, value in below.items():
        yield f"\n[{path}{name}]\n"
        yield from _toml(value, f"{path}{name}.")
    for name, value in table.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            for row in value:
                yield f"\n[[{path}{name}]]\n"
                yield from _toml(row)


def store_of(folder: Path) -> redis.Redis:
    """Connect to the store itself, by what a node's configuration says of it."""
    url = tomllib.loads((folder / "n0" / "node.toml").read_text())["store"]["url"]
    return redis.Redis.from_url(url, decode_responses=True)


def fill(folder: Path, provider: Provider) -> dict[str, Any]:
    """Fill the cluster that serves there, leave work under way, and return what was made."""
    node, store = Node(folder, BASE_PORT), store_of(folder)
    seconds, micros = node.ask("TIME")
    made: dict[str, Any] = {
        "now_ms": int(seconds) * 1000 + int(micros) // 1000,
        "leases": {},
        "fences": {},
    }
    plain, session = node.connect(), node.connect()
    made["session"] = session.execute_command("SESSION", "GRACE", 5000)
    provider.deaf = True
    fill_tokens(node, provider)
    fill_queues(node, plain, session, made["leases"])
    fill_locks(node, plain, session, made["fences"])
    fill_schedules(node, made["now_ms"])
    made["said"] = answers(node)
    leave_half_done(node, provider, store, folder)
    made["seen"] = provider.seen
    return made


def wait_for_members(folder: Path, names: set[str]) -> None:
    """Wait until exactly these are members that vote, and have another one lead."""
    node = Node(folder, BASE_PORT)

    def there() -> bool:
        status = node.ask("R.STATUS")
        heard = {
            name for name, member in status["members"].items() if member["met"] and member["votes"]
        }
        return heard == names and bool(status["leader"])

    until(there, f"members are {', '.join(sorted(names))}")
    node.ask("R.TRANSFER")


def make(program: str, target: Path) -> None:
    """Make the folder with that program and pack it."""
    with tempfile.TemporaryDirectory(prefix="tw-") as parent:
        folder, provider = Path(parent) / "data", Provider()
        settings = configuration(program)
        (folder.parent / "config.toml").write_text(settings.replace("@PORT@", str(provider.port)))
        up = Up(program, folder, 4)
        try:
            wait_for_members(folder, {"n0", "n1", "n2", "n3"})
        finally:
            up.end()
        up = Up(program, folder, 3)  # n3 leaves
        try:
            wait_for_members(folder, {"n0", "n1", "n2"})
            made = fill(folder, provider)
        finally:
            up.kill()
        (folder.parent / "config.toml").write_text(settings)
        (folder.parent / "made.json").write_text(json.dumps(made, indent=1))
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for path in (folder.parent / "made.json", folder.parent / "config.toml", folder):
                archive.add(path, path.name, filter=_packed)


def _packed(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    name = Path(entry.name).name
    if (
        name in LEFT_OUT
        or name.endswith((".log", ".sock", ".pid"))
        or not (entry.isfile() or entry.isdir())
    ):
        return None
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
