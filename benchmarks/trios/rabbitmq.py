"""
RabbitMQ: a quorum queue on three brokers, publishers confirmed.

Spoken to in bare AMQP 0-9-1; Debian's ``rabbitmq-server`` has it, and ``erlang``.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.connections import Board, Broken, Connection
from benchmarks.ports import free_ports
from benchmarks.targets import Missing
from benchmarks.trios.trio import HOSTS, WHOLE_S, Server, Trio, running

QUEUE = "bench.cycle"
SCRIPTS = Path("/usr/lib/rabbitmq/bin")
"""Debian's /usr/sbin/rabbitmq-server would change the user and the folders."""
DECLARE = (
    f'rabbit_amqqueue:declare(rabbit_misc:r(<<"/">>, queue, <<"{QUEUE}">>), true, false,'
    ' [{<<"x-queue-type">>, longstr, <<"quorum">>}], none, <<"bench">>).'
)
METHOD, HEADER, BODY = 1, 2, 3
FRAME_END = b"\xce"
PERSISTENT = struct.pack(">HB", 0x1000, 2)

START, START_OK, TUNE, TUNE_OK, OPEN, OPEN_OK = (
    (10, 10), (10, 11), (10, 30), (10, 31), (10, 40), (10, 41),
)  # fmt: skip
CHANNEL_OPEN, CHANNEL_OPENED = (20, 10), (20, 11)
QOS, QOS_OK, CONSUME, CONSUMING = (60, 10), (60, 11), (60, 20), (60, 21)
PUBLISH, DELIVER, ACK, NACK = (60, 40), (60, 60), (60, 80), (60, 120)
CONFIRM, CONFIRMING = (85, 10), (85, 11)


def short(text: str | bytes) -> bytes:
    """A short string."""
    data = text.encode() if isinstance(text, str) else text
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    """A long string, or a table."""
    return struct.pack(">I", len(data)) + data


def frame(kind: int, channel: int, body: bytes) -> bytes:
    return struct.pack(">BHI", kind, channel, len(body)) + body + FRAME_END


def method(name: tuple[int, int], arguments: bytes = b"", channel: int = 1) -> bytes:
    return frame(METHOD, channel, struct.pack(">HH", *name) + arguments)


def message(payload: bytes) -> bytes:
    """A persistent message, published to the queue."""
    said = method(PUBLISH, struct.pack(">H", 0) + short("") + short(QUEUE) + b"\0")
    head = struct.pack(">HHQ", 60, 0, len(payload)) + PERSISTENT
    return said + frame(HEADER, 1, head) + frame(BODY, 1, payload)


GREETING = b"AMQP\0\0\x09\x01"
ANSWERS = {
    START: method(
        START_OK, long(b"") + short("PLAIN") + long(b"\0guest\0guest") + short("en_US"), 0
    ),
    OPEN_OK: method(CHANNEL_OPEN, short("")),
    CHANNEL_OPENED: method(QOS, struct.pack(">IHB", 0, 1, 0)),
    QOS_OK: method(CONFIRM, b"\0"),
}
"""What is said to each method of the beginning; TUNE is repeated to the broker."""


class RabbitConnection(Connection):
    """
    Publish with its confirm, a consumer with a prefetch of one, an ack (which nobody confirms).

    A delivery may come before it is asked for; it is held until then.
    """

    def __init__(self, board: Board, auth: tuple[str, ...] = ()) -> None:
        super().__init__(board, auth)
        self.buffer = b""
        self.plain_put = message(board.payload)
        self.consuming = self.wanted = False
        self.delivery: int | None = None
        self.ready: tuple[int, bytes] | None = None

    def opened(self) -> None:
        self.transport.write(GREETING)

    def put(self, payload: bytes | None = None, delay_ms: int = 0) -> None:
        assert not delay_ms, "a quorum queue has no delays"
        self.transport.write(self.plain_put if payload is None else message(payload))

    def take(self) -> None:
        if self.ready is not None:
            task, self.ready = self.ready, None
            self.was_taken(*task)
            return
        self.wanted = True
        if not self.consuming:
            self.consuming = True
            arguments = struct.pack(">H", 0) + short(QUEUE) + short("") + b"\0" + long(b"")
            self.transport.write(method(CONSUME, arguments))

    def ack(self, task: Any) -> None:
        self.transport.write(method(ACK, struct.pack(">QB", task, 0)))
        self.was_acked()

    def data_received(self, data: bytes) -> None:
        data = self.buffer + data
        place = 0
        while len(data) - place >= 8:
            kind, _, size = struct.unpack_from(">BHI", data, place)
            if len(data) - place < 8 + size:
                break
            body = data[place + 7 : place + 7 + size]
            place += 8 + size
            # What is called here may send, and so be answered, but not within this call.
            self.buffer = b""
            if kind == METHOD:
                self.called((body[0] << 8 | body[1], body[2] << 8 | body[3]), body[4:])
            elif kind == BODY:
                self.came(body)
        self.buffer = data[place:]

    def came(self, payload: bytes) -> None:
        assert self.delivery is not None
        task, self.delivery = (self.delivery, payload), None
        if self.wanted:
            self.wanted = False
            self.was_taken(*task)
        else:
            self.ready = task

    def called(self, name: tuple[int, int], rest: bytes) -> None:
        if name == ACK:
            self.was_put()
        elif name == DELIVER:
            self.delivery = struct.unpack_from(">Q", rest, 1 + rest[0])[0]
        elif name == TUNE:
            channels, frame_bytes, _ = struct.unpack(">HIH", rest)
            tuned = struct.pack(">HIH", channels, frame_bytes, 0)
            opened = method(OPEN, short("/") + short("") + b"\0", 0)
            self.transport.write(method(TUNE_OK, tuned, 0) + opened)
        elif name in ANSWERS:
            self.transport.write(ANSWERS[name])
        elif name == CONFIRMING:
            self.begin()
        elif name != CONSUMING:
            self.fail((name, rest))


def script(name: str) -> Path:
    """
    One of RabbitMQ's programs.

    Raises: Missing.
    """
    if not (SCRIPTS / name).exists() or shutil.which("erl") is None:
        raise Missing("rabbitmq is not installed: apt-get install rabbitmq-server")
    return SCRIPTS / name


def surroundings(folder: Path, epmd_port: int) -> dict[str, str]:
    """Of all its programs: whose cluster they speak to."""
    return {
        "HOME": str(folder),
        "ERL_EPMD_PORT": str(epmd_port),
        "ERL_EPMD_ADDRESS": "127.0.0.1",
        "RABBITMQ_CONF_ENV_FILE": str(folder / "none.conf"),
        "RUNNING_UNDER_SYSTEMD": "1",  # the shell becomes the broker
    }


def places(home: Path, name: str, dist_port: int) -> dict[str, str]:
    """Of one broker: its name, its port for others, and where its files are."""
    return {
        "RABBITMQ_NODENAME": name,
        "RABBITMQ_DIST_PORT": str(dist_port),
        "RABBITMQ_CONFIG_FILE": str(home / "rabbitmq.conf"),
        "RABBITMQ_ENABLED_PLUGINS_FILE": str(home / "enabled_plugins"),
        "RABBITMQ_MNESIA_BASE": str(home / "data"),
        "RABBITMQ_LOG_BASE": str(home / "log"),
        "RABBITMQ_PID_FILE": str(home / "pid"),
        "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
    }


def say(broker: Server, *words: str, limit_s: float = 60.0) -> str:
    """What rabbitmqctl prints; empty when it fails."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [SCRIPTS / "rabbitmqctl", "-q", "-n", broker.surroundings["RABBITMQ_NODENAME"], *words],
            env={**os.environ, **broker.surroundings},
            capture_output=True, text=True, check=False, timeout=limit_s,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else ""
    return ""


def nodename(broker: Server) -> str:
    return broker.surroundings["RABBITMQ_NODENAME"]


def asked(brokers: list[Server], what: str) -> list[str]:
    """The fields of the queue that a living broker tells."""
    for broker in brokers:
        if broker.runs and (told := say(broker, "list_queues", "name", what, "--no-table-headers")):
            for line in told.splitlines():
                name, _, value = line.partition("\t")
                if name == QUEUE:
                    return value.strip("[] ").replace("'", "").replace(",", " ").split()
    return []


def leader_of(brokers: list[Server]) -> int:
    """The number of the queue's leader. Raises: Broken: there is none."""
    until = time.monotonic() + WHOLE_S
    while time.monotonic() < until:
        if found := asked(brokers, "leader"):
            return [nodename(broker) for broker in brokers].index(found[0])
    raise Broken("rabbitmq: its queue has no leader")


def whole(brokers: list[Server]) -> bool:
    return len(asked(brokers, "online")) == HOSTS


def broker_of(folder: Path, number: int, first: int, names: list[str]) -> Server:
    """One broker, not started; ``first``: of the ports of all."""
    home = folder / f"rabbit-{number}"
    home.mkdir()
    peers = "".join(
        f"cluster_formation.classic_config.nodes.{place} = {name}\n"
        for place, name in enumerate(names, 1)
    )
    (home / "rabbitmq.conf").write_text(
        f"listeners.tcp.1 = 127.0.0.1:{first + number}\n"
        "cluster_formation.peer_discovery_backend = classic_config\n"
        "cluster_formation.randomized_startup_delay_range.min = 0\n"
        f"cluster_formation.randomized_startup_delay_range.max = 1\n{peers}"
        "log.file.level = warning\n"
    )
    (home / "enabled_plugins").write_text("[].\n")
    where = places(home, names[number], first + HOSTS + number)
    command = [str(script("rabbitmq-server"))]
    everywhere = surroundings(folder, first + 2 * HOSTS)
    return Server(f"rabbit-{number}", first + number, command, folder, everywhere | where)


def purge(brokers: list[Server]) -> None:
    say(brokers[0], "purge_queue", QUEUE)


def make_queue(brokers: list[Server]) -> None:
    """The queue, once the brokers are one cluster. Raises: Broken."""
    until = time.monotonic() + WHOLE_S
    while True:
        told = say(brokers[0], "eval", "length(rabbit_nodes:all_running()).")
        if told.strip() == str(HOSTS) and "new" in say(brokers[0], "eval", DECLARE):
            return
        if time.monotonic() > until:
            raise Broken(f"rabbitmq: {told.strip() or 'none'} of its brokers found each other")
        time.sleep(0.2)


@contextlib.contextmanager
def started(folder: Path, *, fsync: bool = False) -> Iterator[Trio]:
    """
    Start three brokers with their data in ``folder``, and an epmd of their own.

    ``fsync`` changes nothing: a quorum queue syncs before it confirms.

    Raises: Missing, Broken.
    """
    script("rabbitmq-server")
    first, tag = free_ports(2 * HOSTS + 1), secrets.token_hex(3)
    cookie = folder / ".erlang.cookie"
    cookie.write_text(secrets.token_hex(16))
    cookie.chmod(0o400)
    names = [f"bench{tag}{number}@localhost" for number in range(HOSTS)]
    brokers = [broker_of(folder, number, first, names) for number in range(HOSTS)]
    epmd_port = first + 2 * HOSTS
    epmd = Server(
        "epmd", epmd_port,
        [shutil.which("epmd") or "epmd", "-address", "127.0.0.1", "-port", str(epmd_port)], folder,
    )  # fmt: skip
    with running([epmd]), running(brokers):
        make_queue(brokers)
        version = say(brokers[0], "version").strip()
        yield Trio(
            "rabbitmq",
            f"RabbitMQ {version}, a quorum queue of {HOSTS} replicas, each write synced before its"
            " confirm, acks not confirmed",
            brokers,
            RabbitConnection,
            lambda: leader_of(brokers),
            lambda: whole(brokers),
            lambda: purge(brokers),
        )
