"""What a benchmark drives: nodes and peers, started on free ports and ended with their block."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import hiredis

START_S = 30.0
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Target:
    """What is measured: where it listens, how it is spoken to, whose processor time counts."""

    name: str
    host: str
    port: int
    pids: dict[str, int]
    auth: tuple[str, ...] = ()


def cpu_s(pid: int) -> float:
    """Processor seconds a process has used, all its threads."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def free_ports(count: int) -> int:
    """The first of ``count`` ports in a row that nothing listens on."""
    while True:
        with socket.socket() as first:
            first.bind(("127.0.0.1", 0))
            base: int = first.getsockname()[1]
        if base + count > 65_535:
            continue
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(base, base + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base


def wait_port(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None:
            break
        time.sleep(0.05)
    raise SystemExit(f"{process.args!r} does not listen on {port}:\n{log.read_text()[-2000:]}")


@contextlib.contextmanager
def running(command: list[str], port: int, folder: Path, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours that listens on ``port``, ended with the block."""
    log = folder / f"{name}.out"
    with log.open("wb") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
    try:
        wait_port(process, port, log)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(10)


def child_of(pid: int, name: str) -> int | None:
    """A child process whose name begins so."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            head, _, rest = stat.read_text().rpartition(")")
            if rest.split()[1] == str(pid) and head.partition("(")[2].startswith(name):
                return int(stat.parent.name)
    return None


@contextlib.contextmanager
def own_node(folder: Path) -> Iterator[Target]:
    base = free_ports(5)
    settings = [f"node.base_port={base}", f"node.data_dir={folder / 'node'}", "log.level=warning"]
    command = [sys.executable, "-m", "tidewarden", "node", *(word for text in settings for word in ("--set", text))]
    with running(command, base, folder, "node") as process:
        yield Target("tidewarden", "127.0.0.1", base, parts_of(process.pid))


def parts_of(pid: int) -> dict[str, int]:
    """The front's process, and the engine's where it is a child of it."""
    engine = child_of(pid, "valkey") or child_of(pid, "redis")
    return {"front": pid} | ({"engine": engine} if engine else {})


def node_at(url: str) -> Target:
    """A node that runs already; its processor time counts when it runs on this machine."""
    parts = urlsplit(url)
    host, port = parts.hostname or "127.0.0.1", parts.port or 7420
    auth = (unquote(parts.username or "default"), unquote(parts.password)) if parts.password else ()
    with socket.create_connection((host, port), 5) as connection:
        requests = [("AUTH", *auth)] if auth else []
        reader = hiredis.Reader()
        reply: object = None
        for request in [*requests, ("R.STATUS",)]:
            connection.sendall(hiredis.pack_command(request))
            while (reply := reader.gets()) is False:
                reader.feed(connection.recv(65_536))
    if not isinstance(reply, list):
        raise SystemExit(f"{host}:{port} answers R.STATUS with {reply!r}")
    status = dict(zip(reply[::2], reply[1::2], strict=True))
    pid = int(status[b"pid"])
    local = host in ("127.0.0.1", "localhost", "::1") and Path(f"/proc/{pid}").exists()
    return Target("tidewarden", host, port, parts_of(pid) if local else {}, auth)


@contextlib.contextmanager
def beanstalkd(folder: Path) -> Iterator[Target | None]:
    """The peer without a log; None where it is not installed."""
    binary = shutil.which("beanstalkd") or shutil.which("beanstalkd", path="/usr/bin:/usr/local/bin")
    if binary is None:
        print("beanstalkd is not installed (apt-get install beanstalkd): no peer beside us, no ratio")
        yield None
        return
    port = free_ports(1)
    with running([binary, "-l", "127.0.0.1", "-p", str(port)], port, folder, "beanstalkd") as process:
        yield Target("beanstalkd", "127.0.0.1", port, {"engine": process.pid})
