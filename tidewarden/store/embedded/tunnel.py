"""
Carries a store's replication over TLS, for a valkey-server that has none.

Two halves, in the process that runs the store:

- **Inwards** it listens at the store's TCP port with the node's certificate. Each connection goes
  to the store's Unix socket, where the users and their passwords guard it, as they would without
  TLS. Replicas of other nodes come here, and other nodes' own connections (``rediss://``).
- **Outwards** it listens at a port of loopback, to which the store's ``REPLICAOF`` points. Each
  connection goes to the accepting half of the node that the file ``upstream`` in the store's folder
  names.

Whom the outward half believes: a certificate for which ``node.tls_ca`` vouches (without it: the
certificates in ``node.tls_cert``) or an authority that this host trusts, which has not expired, and
which **names the host** that was dialled, as it stands in ``cluster.members``: also an address must
be in it. The inward half asks for no certificate: the passwords of the store's users, made of the
cluster's secret, say who comes.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import quote

from tidewarden.clock import Clock, sleep
from tidewarden.config import tls
from tidewarden.config.addresses import ANY_PORT_MAX, joined, listened, parse_address
from tidewarden.config.settings import Node
from tidewarden.errors import ConfigError
from tidewarden.log import OncePer

from .tunnel_relay import LINGER_S, Relay

log = logging.getLogger("tidewarden.store")

UPSTREAM = "upstream"
OUTWARD_PORT = "outward_port"
HANDSHAKE_S = 5.0
"""The longest time for a TLS handshake, and again for a peer's login at the store."""
STRANGERS_MAX = 64
"""
The most connections that have not logged in at the store yet; for one more the oldest is closed.
"""
CONNECTIONS_MAX = 2000
OUTWARD_STRANGERS_MAX = 8
"""The same for outward connections: a replica needs one, and two while it changes over."""
SAID_S = 10.0
BACKLOG = 128


def write_upstream(folder: Path, address: str) -> None:
    """
    Name the store that the outward half leads to, ``host:port``, for connections from now on.

    Write it before ``REPLICAOF``, and let go of the store that was followed before.
    """
    fresh = folder / f"{UPSTREAM}.new"
    fresh.write_text(address, "ascii")
    fresh.replace(folder / UPSTREAM)


def outward_port(folder: Path) -> int:
    """
    Return the port of loopback to which ``REPLICAOF`` has to point.

    Raises: OSError, ValueError: no tunnel runs for the store in this folder.
    """
    return int((folder / OUTWARD_PORT).read_text("ascii"))


def store_url(node: Node, address: str, user: str, password: str) -> str:
    """
    Return the URL of another node's store at ``host:port``, by TLS where this node has it.

    A secret: keep it out of logs.
    """
    credentials = f"{quote(user, safe='')}:{quote(password, safe='')}"
    if not node.tls_cert:
        return f"redis://{credentials}@{address}"
    authorities = quote(node.tls_ca or node.tls_cert, safe="")
    return f"rediss://{credentials}@{address}?ssl_ca_certs={authorities}"


class StoreTunnel:
    """Runs both halves, for the store in ``folder`` with the Unix socket ``store``."""

    def __init__(self, node: Node, folder: Path, store: Path, clock: Clock) -> None:
        """Listen at the host and store port of ``node``, which has a certificate."""
        self._node = node
        self._folder = folder
        self._store = store
        self._clock = clock
        self._inward = Door("store port", clock, self._let_in, STRANGERS_MAX)
        self._outward = Door("replica's way out", clock, self._lead_out, OUTWARD_STRANGERS_MAX)
        self._said = OncePer(clock, SAID_S)
        self._stamps: tuple[tuple[int, int], ...] = ()
        self._server: ssl.SSLContext | None = None
        self._client: ssl.SSLContext | None = None

    async def start(self) -> None:
        """
        Listen, and write the outward half's port into the store's folder.

        Raises: ConfigError: the port is taken, or the certificate cannot be read.
        """
        node = self._node
        try:
            self._renew()
            await self._inward.open(node.host, node.store_port)
            await self._outward.open("127.0.0.1", 0)
        except (OSError, ValueError) as error:
            await self.stop()
            raise ConfigError([f"node.base_port: the store's TLS port: {error}"]) from None
        (self._folder / OUTWARD_PORT).write_text(str(self._outward.port), "ascii")

    async def stop(self) -> None:
        """Close every connection and listen no more. Harmless when nothing runs."""
        (self._folder / OUTWARD_PORT).unlink(missing_ok=True)
        await self._inward.close()
        await self._outward.close()

    @property
    def port(self) -> int:
        """Return the TCP port at which it speaks TLS."""
        return self._inward.port

    @property
    def connections(self) -> int:
        """Return how many connections the tunnel carries, both ways."""
        return len(self._inward.guests) + len(self._outward.guests)

    # --- inwards

    async def _let_in(self, guest: Guest) -> None:
        self._renew_if_changed()
        loop = asyncio.get_running_loop()
        relay = Relay(guest.hear)
        with contextlib.closing(relay):
            try:
                await loop.connect_accepted_socket(
                    lambda: relay.came,
                    guest.socket,
                    ssl=self._server,
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=LINGER_S,
                )
            except OSError as error:
                if fault := tls.handshake_fault(error, HANDSHAKE_S):
                    self._inward.refuse(guest, fault)
                return
            if len(self._inward.guests) - len(self._inward.strangers) > CONNECTIONS_MAX:
                self._inward.refuse(guest, f"there are {CONNECTIONS_MAX} others")
                return
            try:
                await loop.create_unix_connection(lambda: relay.going, str(self._store))
            except OSError as error:  # it starts again, or has ended: who came finds that out
                log.debug("%s was let go, the store does not answer: %s", guest.address, error)
                return
            await self._inward.carry(guest, relay)

    # --- outwards

    async def _lead_out(self, guest: Guest) -> None:
        self._renew_if_changed()
        loop = asyncio.get_running_loop()
        relay = Relay(guest.hear)
        with contextlib.closing(relay):
            await loop.connect_accepted_socket(lambda: relay.came, guest.socket)
            target = self._upstream()
            if target is None:
                self._say("no store to follow is named yet")
                return
            host, port = target
            try:
                async with asyncio.timeout(HANDSHAKE_S):
                    await loop.create_connection(
                        lambda: relay.going,
                        host,
                        port,
                        ssl=self._client,
                        server_hostname=host,
                        ssl_shutdown_timeout=LINGER_S,
                    )
            except (OSError, TimeoutError) as error:
                self._say(f"the store at {joined(host, port)} {_unreachable(error, host)}")
                return
            await self._outward.carry(guest, relay)

    def _upstream(self) -> tuple[str, int] | None:
        try:
            return parse_address((self._folder / UPSTREAM).read_text("ascii"), ANY_PORT_MAX)
        except (OSError, UnicodeDecodeError):
            return None

    def _say(self, text: str) -> None:
        if self._said.passes():
            log.warning("nothing is replicated: %s", text)

    # --- certificates

    def _renew_if_changed(self) -> None:
        """Use a renewed certificate from now on; log one that does not fit."""
        try:
            if self._stamps_now() != self._stamps:
                self._renew()
        except (OSError, ValueError) as error:
            if self._said.passes():
                log.error("the certificate of the store's port was not read anew: %s", error)

    def _renew(self) -> None:
        """Load the certificate's files anew. Raises: OSError, ValueError: the files do not fit."""
        node = self._node
        stamps = self._stamps_now()
        server = tls.server_context(node.tls_cert, node.tls_key)
        client = tls.client_context(node.tls_ca or node.tls_cert)
        self._server, self._client, self._stamps = server, client, stamps

    def _stamps_now(self) -> tuple[tuple[int, int], ...]:
        files = filter(None, (self._node.tls_cert, self._node.tls_key, self._node.tls_ca))
        found = [os.stat(file) for file in files]
        return tuple((one.st_mtime_ns, one.st_ino) for one in found)


class Guest:
    """Holds one accepted connection, which is a stranger until the store has let it in."""

    def __init__(self, door: Door, accepted: socket.socket, address: str) -> None:
        self._door = door
        self.socket = accepted
        self.address = address
        self.on_known: Callable[[], None] = lambda: None

    def hear(self, data: bytes) -> bool:
        """
        Read the store's answer; return whether it has let the guest in.

        The store answers nothing but errors before a login.
        """
        if all(line.startswith(b"-") for line in data.splitlines()):
            return False
        self.know()
        return True

    def know(self) -> None:
        """Note that the guest is no stranger any more."""
        self._door.strangers.pop(self, None)
        self.on_known()

    def hang_up(self) -> None:
        """Close its connection, which a handshake that was cut short leaves open."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)


class Door:
    """
    Listens, and has ``meet`` serve each guest in a task of its own.

    Args:
        name: what it is called in the log.
        strangers_max: one more who is not known yet, and the oldest of them is closed.
    """

    def __init__(
        self,
        name: str,
        clock: Clock,
        meet: Callable[[Guest], Awaitable[None]],
        strangers_max: int,
    ) -> None:
        self._name = name
        self._clock = clock
        self._meet = meet
        self._strangers_max = strangers_max
        self._said = OncePer(clock, SAID_S)
        self._sockets: list[socket.socket] = []
        self._accepting: list[asyncio.Task[None]] = []
        self.guests: dict[Guest, asyncio.Task[None]] = {}
        self.strangers: dict[Guest, None] = {}
        """The strangers, in the order in which they came."""

    @property
    def port(self) -> int:
        """Return the TCP port it listens at."""
        return int(self._sockets[0].getsockname()[1])

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises: OSError: the port is taken."""
        loop = asyncio.get_running_loop()
        hosts = listened(host)
        for one in [hosts] if isinstance(hosts, str) else hosts:
            found = await loop.getaddrinfo(
                one, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, _, _, _, address in dict.fromkeys(found):
                made = socket.create_server(address[:2], family=family, backlog=BACKLOG)
                made.setblocking(False)
                self._sockets.append(made)
        self._accepting = [loop.create_task(self._accept(one)) for one in self._sockets]

    async def close(self) -> None:
        """Listen no more, and close the guests' connections."""
        jobs = [*self._accepting, *self.guests.values()]
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        for one in self._sockets:
            one.close()
        self._accepting, self._sockets = [], []

    def refuse(self, guest: Guest, fault: str) -> None:
        """Say, now and then, why a guest is sent away; ``fault`` begins with "it" or "there"."""
        if self._said.passes():
            log.warning(
                "sent away from the %s: %s", self._name, fault, extra={"peer": guest.address}
            )

    async def carry(self, guest: Guest, relay: Relay) -> None:
        """Return when the relay has ended, or the guest had time enough to log in."""
        try:
            async with asyncio.timeout(HANDSHAKE_S) as limit:
                guest.on_known = functools.partial(limit.reschedule, None)
                await relay.ended.wait()
        except TimeoutError:
            self.refuse(guest, f"it did not log in within {HANDSHAKE_S:g} s")

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, address = await loop.sock_accept(listening)
            except OSError as error:  # the process is out of files, say
                log.warning("no connection is accepted at the %s: %s", self._name, error)
                await sleep(self._clock, 1.0)
                continue
            guest = Guest(self, accepted, joined(address[0], address[1]))
            if len(self.strangers) >= self._strangers_max:
                oldest = next(iter(self.strangers))
                self.refuse(oldest, "others came after it, and it had not logged in")
                self.strangers.pop(oldest)
                self.guests[oldest].cancel()
            self.strangers[guest] = None
            self.guests[guest] = task = loop.create_task(self._serve(guest))
            task.add_done_callback(functools.partial(self._gone, guest))

    async def _serve(self, guest: Guest) -> None:
        try:
            await self._meet(guest)
        except OSError as error:
            log.debug("a connection at the %s was lost: %s", self._name, error)

    def _gone(self, guest: Guest, task: asyncio.Task[None]) -> None:
        self.strangers.pop(guest, None)
        del self.guests[guest]
        guest.hang_up()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a connection at the %s failed", self._name, exc_info=error)


def _unreachable(error: OSError | TimeoutError, host: str) -> str:
    """Say why the other node's store cannot be followed."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = error.verify_message.removesuffix(".")
        return (
            f"shows a certificate that is not accepted ({why}): it must name {host!r}, and an"
            " authority of node.tls_ca must vouch for it"
        )
    if isinstance(error, ssl.SSLError):
        return f"cannot be reached by TLS ({(error.reason or 'error').replace('_', ' ').lower()})"
    if isinstance(error, TimeoutError) and not error.errno:
        return f"does not answer within {HANDSHAKE_S:g} s"
    return f"cannot be reached ({error.strerror or error})"
