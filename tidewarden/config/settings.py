"""
Declares the settings: each field with its meaning, unit, bound and the reason for its default.

:mod:`tidewarden.config.load` loads them; ``config.toml`` at the repository's root shows them all as
they are written.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from .addresses import (
    NETWORKS_ALLOWED,
    WILDCARDS,
    Network,
    joined,
    networks_of,
    parse_address,
    split_host,
)
from .egress import HEADERS, PROXY, Reach, reach_of
from .provider import Provider
from .provider_reading import NAME, NAME_ALLOWED
from .return_addresses import ALLOWED as RETURN_ALLOWED
from .rights import EVERYTHING, RIGHTS_ALLOWED
from .secret import HASH_ALLOWED, Secret
from .sources import setting

STORE_ABOVE = 3
"""An embedded store's port is so many above its node's first."""
BEANSTALKD_ABOVE = 4
"""The beanstalkd door's port likewise, unless it is set."""
LINEAGE = "lineage.json"
"""A file of a store's folder that only a store of several has."""
NETWORK = r"[0-9A-Fa-f:.]{2,45}(/[0-9]{1,3})?"
STRATEGY = r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*[.:][A-Za-z_]\w*"


@dataclass(frozen=True, slots=True)
class Cluster:
    """Holds the settings on which all nodes of a cluster agree."""

    name: str = setting("tidewarden", pattern=NAME, allowed=NAME_ALLOWED)
    """
    Begins every key in the store, so that several clusters can share one. Fixed once there is data.
    """
    secret_file: str = setting("", path=True)
    """
    File with the secret by which nodes know each other, the same on each. Needed as soon as there
    are peers.
    """
    members: dict[str, str] = setting({}, allowed="node names with 'host:base_port' each")  # noqa: RUF009  # becomes a factory
    """Every node's name and ``host:base_port``, this one's too. Empty, the default: a lone node."""


@dataclass(frozen=True, slots=True)
class Node:
    """Holds the settings of this node."""

    name: str = setting("n0", pattern=NAME, allowed=NAME_ALLOWED)
    """Its name among ``cluster.members``; it must not move to another data folder."""
    host: str = setting("127.0.0.1", required=True, allowed="an address or host name to listen on")
    """
    Address to listen on. Loopback by default: a node that is not secured should not be reachable.
    """
    advertise: str = setting("", allowed="'host' or 'host:port' by which others reach it")
    """
    Where other nodes and clients are told to reach it: ``host``, or ``host:port`` where
    ``base_port`` comes out elsewhere. Empty, the default: as in ``cluster.members``, else ``host``;
    if that is every address of its host, the one by which it reaches the store.
    """
    base_port: int = setting(7420, low=1, high=65_531)
    """
    First of its ports: RESP + 0, HTTP + 1, Raft + 2, the store + 3, beanstalkd + 4. Nodes on one
    host: 10 apart.
    """
    data_dir: str = setting("./tidewarden-data", required=True, path=True, allowed="a folder")
    """Folder of journals, logs, secrets and an embedded store. Made when absent."""

    processes: int = setting(1, low=1, high=64)
    """
    Processes that serve its RESP port together (SO_REUSEPORT). More than one pays when that one is
    busy and cores are free.
    """
    role: str = setting("member", choices=("member", "joining", "worker"))
    """
    ``member``: elects the leader with the others. ``joining``: the same, but waits until a running
    cluster lets it in (``tidewarden cluster join``) and founds none. ``worker``: serves every verb,
    but elects nobody and never leads.
    """
    tls_cert: str = setting("", path=True)
    """
    File (PEM) with its certificate, then those that vouch for it: RESP and HTTP are TLS then.
    Empty, the default: they are not.
    """
    tls_key: str = setting("", path=True)
    """File (PEM) with the certificate's key, not encrypted."""
    tls_ca: str = setting("", path=True)
    """
    File (PEM) with the authorities that vouch for the other nodes' certificates, where their stores
    replicate. Empty, the default: those that this host trusts, and the certificates in
    ``tls_cert``.
    """

    @property
    def address(self) -> str:
        """
        Return the ``host:base_port`` at which others may reach the node.

        Empty: it listens at every address of its host, whichever those are.
        """
        if self.advertise:
            return joined(*split_host(self.advertise, self.base_port))
        return (
            ""
            if self.host.strip("[]") in WILDCARDS
            else joined(self.host.strip("[]"), self.base_port)
        )

    @property
    def resp_port(self) -> int:
        """Return the TCP port of the RESP door."""
        return self.base_port

    @property
    def http_port(self) -> int:
        """Return the TCP port of the HTTP door."""
        return self.base_port + 1

    @property
    def raft_port(self) -> int:
        """Return the TCP port on which nodes speak Raft."""
        return self.base_port + 2

    @property
    def store_port(self) -> int:
        """Return the TCP port of the embedded store."""
        return self.base_port + STORE_ABOVE


@dataclass(frozen=True, slots=True)
class Raft:
    """Holds the settings of the leader's election."""

    pace: float = setting(1.0, low=0.1, high=100)
    """
    Multiplies every Raft time-out. 1 suits one machine or one site; more for slow machines and long
    lines.
    """


@dataclass(frozen=True, slots=True)
class Store:
    """Holds the settings of the Valkey or Redis that has the data."""

    url: str = setting(
        "embedded",
        required=True,
        secret=True,
        show=False,
        allowed="'embedded', redis://, rediss://, unix://, redis+sentinel:// or redis+cluster://",
    )
    """
    ``embedded`` (a server of this node's own; the servers of several nodes replicate), or the
    address of yours. May carry a password: hidden in ``repr``.
    """
    binary: str = setting("", path=True)
    """
    valkey-server to run when embedded. Empty, the default: the one that is installed with this
    package.
    """
    fsync: str = setting("everysec", choices=("everysec", "always"))
    """
    When an embedded store brings its log to disk. ``everysec`` may lose a second's writes to a
    power cut, two seconds' where the disk is slow, and those that were answered while a sync was
    under way when its process is killed.
    """
    replicas: int = setting(-1, low=-1, high=100)
    """
    Replicas that durability ``quorum`` waits for. 0: none, and it is refused. -1, the default: 1
    under Sentinel, else 0.
    """
    commit_ms: int = setting(2000, low=10, high=9000)
    """
    How long a write may wait for its durability before it is answered NOQUORUM, milliseconds; less
    than clients wait.
    """
    recover_s: float = setting(0.0, low=0, high=31_536_000)
    """
    How long embedded stores wait for members that do not come back before the best of a majority
    takes over, seconds, though acknowledged writes may be missing from it. 0, the default: for
    ever, an operator decides (`tidewarden cluster recover`).
    """
    maxmemory_bytes: int = setting(0, low=0, high=2**50, allowed="0 or at least 1,048,576")
    """
    Memory an embedded store may take, bytes; 0, the default: no limit. Near it, puts are answered
    FULL.
    """

    @property
    def replicas_needed(self) -> int:
        """Return ``replicas``, or what the URL implies where that is -1."""
        return (
            self.replicas
            if self.replicas >= 0
            else int("+sentinel://" in self.url or "+cluster://" in self.url)
        )


@dataclass(frozen=True, slots=True)
class Limits:
    """
    Holds the limits of one request, one connection or all of them.

    A request over a limit gets a clear error.
    """

    payload_bytes: int = setting(1_048_576, low=1, high=512 * 1_048_576)
    """
    Longest payload of a task. A queue is no place for files: keep those elsewhere and queue their
    names.
    """
    request_bytes: int = setting(0, low=0, high=2**31, allowed="0 or at least limits.payload_bytes")
    """
    Longest RESP or HTTP request. 0, the default: ``payload_bytes`` and 64 KiB for what stands
    around it.
    """
    line_bytes: int = setting(65_536, low=256, high=1_048_576)
    """Longest line: an inline RESP command, a line of HTTP."""
    batch_max: int = setting(1000, low=1, high=100_000)
    """
    Most items of one request, tasks of one take, or entries of one page. A script blocks the store
    while it runs.
    """
    connections_max: int = setting(10_000, low=1, high=1_000_000)
    """Most connections of one node at a time. Raise the host's limit of open files with it."""
    http_connections_max: int = setting(1000, low=1, high=1_000_000)
    """Most connections of one node's HTTP door at a time."""
    waiting_max: int = setting(10_000, low=1, high=1_000_000)
    """Most parked takes of one node at a time."""
    queues_max: int = setting(10_000, low=1, high=1_000_000)
    """
    Most queues of the cluster, and likewise topics; the system's own go beside them, but for those
    of providers that are put. A made-up name makes one, which stays. Of a queue each 16 shards
    count.
    """
    schedules_max: int = setting(100_000, low=1, high=10_000_000)
    """Most schedules of the cluster."""
    sessions_max: int = setting(10_000, low=1, high=100_000)
    """Most sessions of one node that have a connection there, or whose grace runs there."""
    streams_max: int = setting(200, low=1, high=100_000)
    """Most readers of ``/v1/events`` of one node; each has an HTTP connection."""
    user_share: float = setting(0.8, low=0.01, high=1)
    """
    The part that one of several users may have of each: connections, waiting requests, streams,
    sessions, names of queues, topics, schedules and providers, the audit log's entries. Two who
    want all have 0.44 each, and so on: a part is always free for users who come later. 1: no bound.
    A user who is alone has all.
    """
    wait_ms: int = setting(3_600_000, low=0, high=86_400_000)
    """
    Longest WAIT of a take, milliseconds. An hour: past it a silent connection is more likely dead
    than patient.
    """

    def __post_init__(self) -> None:
        if self.request_bytes == 0:
            object.__setattr__(self, "request_bytes", self.payload_bytes + 65_536)


@dataclass(frozen=True, slots=True)
class Queues:
    """Holds the settings for all queues; each queue's own lie in the store (Q.CONFIG)."""

    strategies: tuple[str, ...] = setting(
        (), pattern=STRATEGY, allowed="names like 'package.module:function'"
    )
    """
    Functions of yours by which puts may choose a shard. Only these are imported: a request never
    names code.
    """


@dataclass(frozen=True, slots=True)
class Beanstalkd:
    """Holds the settings of the door for clients of beanstalkd (docs/beanstalkd.md)."""

    enabled: bool = setting(False)
    """Whether it is open. Off by default: most have no such clients."""
    host: str = setting("", allowed="an address or host name to listen on")
    """Address to listen on. Empty, the default: ``node.host``."""
    port: int = setting(0, low=0, high=65_535)
    """TCP port. 0, the default: ``node.base_port`` + 4. Beanstalkd's own is 11300."""
    job_bytes: int = setting(65_535, low=1, high=512 * 1_048_576)
    """
    Longest body of a job, as beanstalkd's ``-z``; ``limits.payload_bytes`` bounds it, too. 65,535,
    the default: beanstalkd's.
    """
    connections_max: int = setting(1000, low=1, high=1_000_000)
    """Most connections of the door at a time; each may wait for a job."""
    client_ca: str = setting("", path=True)
    """
    File (PEM) with the authorities that vouch for clients' certificates: one whose common name is
    a user's lets that user in. Empty, the default: users say ``auth``.
    """
    user: str = setting("", pattern=rf"({NAME})?", allowed="the name of one of [[users]]")
    """
    Whose rights peers have that do not say ``auth``, which no client of beanstalkd can. Empty, the
    default: none.
    """
    allow: tuple[str, ...] = setting(
        ("127.0.0.0/8", "::1"), pattern=NETWORK, allowed=NETWORKS_ALLOWED
    )
    """Networks from which ``user`` counts. This machine alone, the default."""

    @property
    def networks(self) -> tuple[Network, ...]:
        """Return the networks of ``allow``. Raises: ValueError: an entry is no network."""
        return networks_of(self.allow)


@dataclass(frozen=True, slots=True)
class Otel:
    """Says what a receiver of OpenTelemetry is sent; needs the extra ``tidewarden[otel]``."""

    endpoint: str = setting("", allowed="an address like http://collector:4318, or nothing")
    """
    Address at which OTLP over HTTP is received; ``/v1/traces`` and ``/v1/metrics`` are added.
    Empty, the default: nothing is sent.
    """
    traces: bool = setting(True)
    """Whether spans of refreshes and webhooks are sent. They name the account."""
    sample_share: float = setting(1.0, low=0, high=1)
    """
    Share of the traces that begin here which is sent. A trace that came with a task goes on as it
    was begun.
    """
    metrics: bool = setting(True)
    """Whether the figures of ``/metrics`` are sent."""
    metrics_interval_s: float = setting(60.0, low=1, high=3600)
    """How often the figures are sent, seconds."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Holds the settings for every provider's accounts."""

    cache_max: int = setting(10_000, low=0, high=10_000_000)
    """
    Access tokens that a node keeps, sealed, to serve while the store is away; about 1 KiB each. 0:
    none.
    """
    consent_notice_days: tuple[int, ...] = setting((30, 7, 1), low=1, high=3650)
    """
    How many days ahead it is told that an account's consent ends, where that is known and fixed;
    none: it is not told.
    """
    give_up_s: float = setting(345_600.0, low=3600, high=31_536_000)
    """
    How long an account is asked for in vain before it is ``stopped``, seconds; twice as long where
    nobody knows that the provider is well. Four days: a weekend and the days around it.
    """
    put_networks: tuple[str, ...] = setting((), pattern=NETWORK, allowed=NETWORKS_ALLOWED)
    """
    Networks that providers which are put while nodes run may reach besides public addresses, and by
    ``http://``, too. Empty, the default: none, so that a user who may put one reaches no further.
    """
    put_allowed: tuple[str, ...] = setting(
        (), pattern=rf"{PROXY}|{HEADERS}", allowed=f"{PROXY!r} and {HEADERS!r}"
    )
    """
    Settings that such providers may have, too: a ``proxy``, and ``headers`` that say which host or
    hop a request is for (Host, Cookie, X-Forwarded-For). Empty, the default: neither.
    """

    @property
    def reach(self) -> Reach:
        """Return what providers that are put may reach. Raises: ValueError: one is no network."""
        return reach_of(self.put_networks, self.put_allowed)


@dataclass(frozen=True, slots=True)
class Connect:
    """Says how people give their consent in a browser (docs/connect.md)."""

    url: str = setting(
        "", allowed="the address at which browsers reach the nodes, as 'https://auth.example.com'"
    )
    """
    Address at which browsers reach the nodes' HTTP ports. Providers are told it, followed by
    ``/v1/connect/callback``. Empty, the default: nobody can consent here.
    """
    return_to: tuple[str, ...] = setting((), pattern=r"\S{1,1000}", allowed=RETURN_ALLOWED)
    """
    Addresses of applications to which browsers may be sent afterwards; one that ends in a slash
    stands for all below it. Empty, the default: none; a page says how it ended.
    """
    link_s: float = setting(900.0, low=10, high=86_400)
    """
    How long a link lives, seconds. A quarter of an hour: an application sends its user there at
    once.
    """

    @property
    def redirect_uri(self) -> str:
        """Return the address that providers send browsers back to."""
        return f"{self.url.rstrip('/')}/v1/connect/callback"

    def own_redirect_uri(self, provider: str) -> str:
        """
        Return the address for a provider that is put while nodes run.

        It is not below the one of all others: some providers send codes to whatever lies below the
        address that their client has registered.
        """
        return f"{self.url.rstrip('/')}/v1/connect/put-callback/{provider}"


@dataclass(frozen=True, slots=True)
class Log:
    """Holds the settings of the daemon's log."""

    level: str = setting("info", choices=("debug", "info", "warning", "error"))
    """Least level that is written. ``info``: every change of state, nothing per request."""
    format: str = setting("auto", choices=("auto", "human", "json"))
    """``auto``, the default: human on a terminal, a JSON object a line otherwise."""
    file_bytes: int = setting(10_485_760, low=65_536, high=2**40)
    """Size at which DATA/NODE.log is set aside and begun anew, bytes; five older ones are kept."""


@dataclass(frozen=True, slots=True)
class Vault:
    """
    Says where the key is that seals stored tokens: 32 bytes in base64.

    During a rotation there are several keys, one per line.
    """

    key_file: str = setting("", path=True)
    """
    File with the key. Empty, the default: DATA/secrets/vault.key, made once, 0600. Without it
    tokens are lost.
    """
    key_env: str = setting(
        "", pattern=r"([A-Za-z_][A-Za-z0-9_]*)?", allowed="the name of an environment variable"
    )
    """Name of the environment variable that holds the key instead. Empty, the default: none."""
    key_command: str = setting("")
    """
    Program (no shell) that prints the key instead, as one of a key management service. Empty, the
    default: none.
    """


@dataclass(frozen=True, slots=True)
class User:
    """Describes a user who may connect: AUTH at the RESP door, a bearer token at the HTTP door."""

    name: str = setting("", required=True, pattern=NAME, allowed=NAME_ALLOWED)
    """The user's name, as AUTH sends it."""
    secret_hash: str = setting("", required=True, secret=True, show=False, allowed=HASH_ALLOWED)
    """Hash of the secret; see ``check_secret``. The secret itself stands in no file of ours."""
    rights: tuple[str, ...] = setting((EVERYTHING,), pattern=r"(?s).*", allowed=RIGHTS_ALLOWED)
    """
    The user's rights; see ``rights.py``. ``all``, the default: everything. An empty list: the user
    sees the node's state, no more.
    """


@dataclass(frozen=True, slots=True)
class Events:
    """Holds the settings of events of accounts and providers, for webhooks and ``/v1/events``."""

    failing_s: float = setting(600.0, low=1, high=31_536_000)
    """
    How long an account must have failed to be told of, seconds. Ten minutes: shorter troubles mend
    themselves.
    """
    kept: int = setting(10_000, low=100, high=10_000_000)
    """About how many events the store keeps for readers of ``/v1/events`` who come later."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Holds the settings of the audit log: who read which account, and who changed what."""

    enabled: bool = setting(True)
    """Whether the log is kept."""
    kept: int = setting(10_000, low=100, high=10_000_000)
    """About how many entries of changes and denied requests the store keeps."""
    reads_kept: int = setting(10_000, low=100, high=10_000_000)
    """
    About how many entries of reads of tokens it keeps, each of up to 50 accounts that one user read
    in a window.
    """
    window_s: float = setting(60.0, low=0.05, high=3600)
    """How long reads and denied requests are counted in memory before they are written, seconds."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """Describes an address that events are sent to, signed as Standard Webhooks says."""

    name: str = ""
    """Its name, from ``[webhooks.NAME]``."""
    url: str = setting(
        "", required=True, secret=True, show=False, allowed="an http:// or https:// address"
    )
    """Address that events are sent to. May carry a secret: hidden in ``repr`` and logs."""
    events: tuple[str, ...] = setting(
        ("*",), pattern=r"[a-z._]*\*?", allowed="kinds like 'account.dead', 'account.*'"
    )
    """Kinds that are sent; ``*`` at the end stands for any rest. All, the default."""
    secrets: tuple[Secret, ...] = ()
    """
    ``secret``, ``secret_file`` or ``secret_env``: ``whsec_`` and base64. Several while one is
    rolled: each signs.
    """
    timeout_s: float = setting(15.0, low=0.1, high=60)
    """Longest one delivery may take, seconds."""
    plain_http: bool = setting(False)
    """
    Whether ``url`` may be ``http://`` on another machine: what is sent can be read, and changed, on
    the way.
    """


@dataclass(frozen=True, slots=True)
class Companion:
    """
    Describes work that goes with each account.

    It is a task now and then, while the account's token can be kept fresh.
    """

    name: str = ""
    """Its name, from ``[companions.NAME]``."""
    providers: tuple[str, ...] = setting((), pattern=NAME, allowed="names of providers")
    """Providers whose accounts it goes with. Empty, the default: all of them."""
    queue: str = setting(
        "",
        required=True,
        pattern=r"[A-Za-z0-9.:/-][A-Za-z0-9_.:/-]{0,199}",
        allowed="a queue's name",
    )
    """Queue that the tasks are put into."""
    interval_s: float = setting(86_400.0, low=60, high=31_536_000)
    """
    How often at most, seconds; each account at its own time within it. Once a day, the default.
    """
    payload: str = setting('{"account": "{account}"}')
    """
    The payload; ``{account}``, ``{provider}`` and ``{name}`` stand for ``provider/name`` and its
    parts.
    """


@dataclass(frozen=True, slots=True)
class Config:
    """Holds all settings; ``source`` names the file they came from, ``defaults`` without one."""

    cluster: Cluster = field(default_factory=Cluster)
    node: Node = field(default_factory=Node)
    raft: Raft = field(default_factory=Raft)
    store: Store = field(default_factory=Store)
    limits: Limits = field(default_factory=Limits)
    queues: Queues = field(default_factory=Queues)
    beanstalkd: Beanstalkd = field(default_factory=Beanstalkd)
    otel: Otel = field(default_factory=Otel)
    tokens: Tokens = field(default_factory=Tokens)
    connect: Connect = field(default_factory=Connect)
    log: Log = field(default_factory=Log)
    vault: Vault = field(default_factory=Vault)
    events: Events = field(default_factory=Events)
    audit: Audit = field(default_factory=Audit)
    users: tuple[User, ...] = ()
    webhooks: dict[str, Webhook] = field(default_factory=dict)
    companions: dict[str, Companion] = field(default_factory=dict)
    providers: dict[str, Provider] = field(default_factory=dict)
    source: str = "defaults"

    @property
    def address(self) -> str:
        """Return the ``host:base_port`` by which others are told to reach it; empty: none."""
        named = "" if self.node.advertise else self.cluster.members.get(self.node.name, "")
        return named or self.node.address

    @property
    def beanstalkd_port(self) -> int:
        """Return the TCP port of the beanstalkd door."""
        return self.beanstalkd.port or self.node.base_port + BEANSTALKD_ABOVE

    @property
    def store_folder(self) -> Path:
        """Return the folder in which an embedded store of this node has its data."""
        return Path(self.node.data_dir) / "store"

    @property
    def replicated(self) -> bool:
        """
        Tell whether the store is one of several embedded ones that replicate; reads its folder.

        It is one where the node has peers, or waits to join some, or had some: a cluster that
        shrank to one node goes on as it is.
        """
        if self.store.url != "embedded":
            return False
        return (
            bool(self.peers())
            or self.node.role != "member"
            or (self.store_folder / LINEAGE).exists()
        )

    @property
    def member_stores(self) -> dict[str, str]:
        """Return name and ``host:port`` of each member's embedded store."""
        found = {name: parse_address(address) for name, address in self.cluster.members.items()}
        return {
            name: joined(place[0], place[1] + STORE_ABOVE)
            for name, place in found.items()
            if place is not None
        }

    @property
    def loss_warning(self) -> str:
        """Say why no member of this cluster may be lost; empty: one may, or there is only one."""
        if not self.replicated or len(self.cluster.members) != 2:
            return ""
        names = " and ".join(sorted(self.cluster.members))
        return (
            f"cluster.members: two nodes ({names}) survive the loss of neither: a majority of two"
            " is both. Add a third: tidewarden cluster join"
        )

    def peers(self) -> dict[str, str]:
        """Return name and ``host:base_port`` of every other node."""
        return {
            name: address
            for name, address in self.cluster.members.items()
            if name != self.node.name
        }
