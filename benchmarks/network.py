"""
A network for live tests and fault benchmarks: a network namespace for each node, and a router.

The router stands in a namespace of its own (ip netns, veth).

Cuts are rules of the router that throw packets away, so that neither side is told, and each
direction is cut by itself. Connections can be led through a proxy in the router, too
(:meth:`Network.led`), which neither side is told either. Needs root and Debian's iproute2;
:func:`missing` says what is not there.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import random
import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

CLONE_NEWNET = 0x40000000
NAMED = Path("/run/netns")
CUTS, CUTS_OF_PORTS, LED = "100", "101", "200"
"""
Preferences of the router's rules: a cut comes before what leads a connection to a proxy, so that it
is true of both.
"""
LED_TABLE = "77"
CONNECT_S = 3.0
"""How long the way on is tried for; a peer that is there answers at once."""
Made = TypeVar("Made")


def ip(*words: str, allowed_to_fail: bool = False) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert allowed_to_fail or done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"


def missing() -> str:
    """Why there can be no such network here; empty when there can."""
    if shutil.which("ip") is None:
        return "no ip command (Debian: iproute2)"
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"twprobe-{os.getpid()}-{random.randrange(10**6)}"
    done = subprocess.run(
        ["ip", "netns", "add", probe], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return f"no network namespaces: {done.stderr.strip()}"
    ip("netns", "del", probe)
    return ""


def missing_led() -> str:
    """
    Why no connection can be led through a proxy here; empty when it can.

    Asked where there can be a network.
    """
    probe = f"twprobe-{os.getpid()}-{random.randrange(10**6)}"
    ip("netns", "add", probe)
    try:
        ip(
            "-n",
            probe,
            "rule",
            "add",
            "pref",
            LED,
            "ipproto",
            "tcp",
            "dport",
            "1",
            "lookup",
            LED_TABLE,
        )
        with inside(str(NAMED / probe), socket.socket) as tried:
            tried.setsockopt(socket.SOL_IP, socket.IP_TRANSPARENT, 1)
    except (AssertionError, OSError) as error:
        return f"no connection can be led: {error}"
    finally:
        ip("netns", "del", probe)
    return ""


def inside(namespace: str, make: Callable[[], Made]) -> Made:
    """
    What ``make()`` returns in that namespace (its file).

    Sockets stay in the one where they were made.
    """
    made: list[Made] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with open(namespace) as file:
                if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), f"setns {namespace}")
            made.append(make())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="inside a namespace")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


class Network:
    """
    Namespaces for ``names``, the router's, and this process's way to all of them.

    ``addresses``: each node's. They are its own within this machine; two networks at a time get
    different ones.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._forget_the_dead()
        self._tag = f"tw{os.getpid()}x{random.randrange(16**4):04x}"
        self._router = f"{self._tag}-router"
        # 15 characters are the longest name of a link
        self._veth = f"tw{random.randrange(16**6):06x}"
        net = f"10.{random.randrange(64, 128)}.{random.randrange(256)}"
        self.addresses: dict[str, str] = {}
        self._doors: dict[str, str] = {}  # the router's end of each node's veth
        self._cuts: set[tuple[str, ...]] = set()  # the words of each rule
        self._made = [self._router]
        try:
            ip("netns", "add", self._router)
            self._join("", f"{net}.2", f"{net}.1")
            for number, name in enumerate(names, 1):
                ip("netns", "add", f"{self._tag}-{name}")
                self._made.append(f"{self._tag}-{name}")
                self.addresses[name] = f"{net}.{4 * number + 2}"
                self._join(name, self.addresses[name], f"{net}.{4 * number + 1}")
            ip("route", "add", f"{net}.0/24", "via", f"{net}.1")
            ip("netns", "exec", self._router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
            ip("-n", self._router, "link", "set", "lo", "up")
            ip(
                "-n",
                self._router,
                "route",
                "add",
                "local",
                "0.0.0.0/0",
                "dev",
                "lo",
                "table",
                LED_TABLE,
            )
        except BaseException:
            self.close()
            raise

    def _join(self, name: str, address: str, gateway: str) -> None:
        """A veth from a namespace (empty: ours) to the router, with a /30 of its own."""
        near, far = f"{self._veth}n{len(self.addresses)}", f"{self._veth}f{len(self.addresses)}"
        place = ["-n", f"{self._tag}-{name}"] if name else []
        ip(*place, "link", "add", near, "type", "veth", "peer", "name", far, "netns", self._router)
        ip(*place, "addr", "add", f"{address}/30", "dev", near)
        ip(*place, "link", "set", near, "up")
        ip("-n", self._router, "addr", "add", f"{gateway}/30", "dev", far)
        ip("-n", self._router, "link", "set", far, "up")
        self._doors[name] = far
        if name:
            ip(*place, "link", "set", "lo", "up")
            ip(*place, "route", "add", "default", "via", gateway)

    def namespace(self, name: str) -> str:
        """The file of a node's namespace."""
        return str(NAMED / f"{self._tag}-{name}")

    def listening(self, name: str) -> Callable[[int], socket.socket]:
        """
        Makes listening sockets on the loopback of that namespace.

        They lead from there into this process.
        """
        return lambda port: inside(
            self.namespace(name), lambda: socket.create_server(("127.0.0.1", port))
        )

    def led(
        self, target: str, port: int
    ) -> tuple[Callable[[int], socket.socket], Callable[[str], socket.socket]]:
        """
        Lead connections that other nodes make to that port of ``target`` into this process.

        From now on, all of them. Returns: what makes the socket they come to, and what makes a
        connection on from there, given whose it is (an address). The two ends go on seeing each
        other's addresses, and cuts go on being true, of the packets on either side. It is what
        TPROXY does, by rules of the router alone: what comes in at a node's door is delivered
        there, to sockets that may have any address (IP_TRANSPARENT); what these send is routed as
        usual.
        """
        there, router = self.addresses[target], str(NAMED / self._router)
        for source, here in self.addresses.items():
            if source != target:
                self._deliver(
                    source, "from", here, "to", there, "ipproto", "tcp", "dport", str(port)
                )
                self._deliver(
                    target, "from", there, "to", here, "ipproto", "tcp", "sport", str(port)
                )

        def bound(address: tuple[str, int]) -> socket.socket:
            made = inside(router, socket.socket)
            try:
                made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                made.setsockopt(socket.SOL_IP, socket.IP_TRANSPARENT, 1)
                made.bind(address)
            except BaseException:
                made.close()
                raise
            return made

        def listening(_port: int) -> socket.socket:
            server = bound((there, port))
            server.listen()
            return server

        def connected(peer: str) -> socket.socket:
            way_on = bound((peer, 0))
            try:
                way_on.settimeout(CONNECT_S)
                way_on.connect((there, port))
            except BaseException:
                way_on.close()
                raise
            return way_on

        return listening, connected

    def _deliver(self, door: str, *what: str) -> None:
        ip(
            "-n",
            self._router,
            "rule",
            "add",
            "pref",
            LED,
            "iif",
            self._doors[door],
            *what,
            "lookup",
            LED_TABLE,
        )

    def cut(self, source: str, target: str, *, served: int = 0, asked: int = 0) -> None:
        """
        What ``source`` sends to ``target`` is lost from now on; the other way is open.

        ``served``: only what it sends from that port of its own; ``asked``: only what it sends to
        that port of the other.
        """
        ends = ["from", self.addresses[source], "to", self.addresses[target]]
        for side, port in (("sport", served), ("dport", asked)):
            if port:
                self._lose(*ends, "ipproto", "tcp", side, str(port))
        if not served and not asked:
            self._lose(*ends)

    def _lose(self, *what: str) -> None:
        if what not in self._cuts:
            self._cuts.add(what)
            self._rule("add", *what)

    def isolate(self, name: str) -> None:
        """Nothing passes between that node and the others."""
        for other in self.addresses:
            if other != name:
                self.cut(name, other)
                self.cut(other, name)

    def part(self, one: Iterable[str]) -> None:
        """Nothing passes between these nodes and the rest."""
        here = set(one)
        for a, b in itertools.product(here, self.addresses.keys() - here):
            self.cut(a, b)
            self.cut(b, a)

    def heal(self) -> None:
        """Everything passes."""
        while self._cuts:
            self._rule("del", *self._cuts.pop())

    def _rule(self, verb: str, *what: str) -> None:
        # To take away a rule of two addresses would take one of their ports, too, were it among
        # those.
        place = CUTS_OF_PORTS if "ipproto" in what else CUTS
        ip("-n", self._router, "rule", verb, "pref", place, *what, "blackhole")

    def close(self) -> None:
        """Remove all of it. The processes inside must have ended."""
        for name in reversed(self._made):
            ip("netns", "del", name, allowed_to_fail=True)
        # Sockets of dead processes can keep a namespace for a minute; our end of the veth goes with
        # us, not with it.
        ip("link", "del", f"{self._veth}n0", allowed_to_fail=True)

    @staticmethod
    def _forget_the_dead() -> None:
        """Remove what a run that was killed left behind; its process id is in the name."""
        for path in NAMED.glob("tw*x*-*") if NAMED.exists() else ():
            pid = path.name[2:].partition("x")[0]
            if pid.isdigit() and not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(AssertionError):
                    ip("netns", "del", path.name)
