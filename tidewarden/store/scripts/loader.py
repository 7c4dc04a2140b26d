"""
Loads Lua scripts by name, from the packages' ``lua`` folders, and runs them.

Scripts run from a library or by EVALSHA, and are sent again where a server forgot them.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol

from tidewarden.clock import SystemClock
from tidewarden.errors import Error, Full
from tidewarden.histograms import SCRIPTS, Family
from tidewarden.store.client import CallSender, StoreClient
from tidewarden.store.connection import (
    AGAIN_S,
    HOPELESS_S,
    PATIENCE_S,
    Arg,
    StoreConnection,
    pack,
)
from tidewarden.store.reply_errors import TooFewCopies, known_already
from tidewarden.store.reply_sink import ReplySink

from .tree_shake import trim

monotonic = SystemClock.monotonic  # finer than the loop's time, which has milliseconds
log = logging.getLogger("tidewarden.store")

PRELUDE = "prelude.lua"
OFFER_S = 1.0
GUARD = "~"  # appended to a script's first key: the name of a key that is never written
EACH = ".each"
"""The ending of a script's name for running it on several shards of one server in one call."""
DURABILITIES = ("none", "queue", "system", "strongest")
ALLOWED = {"DURABILITY": DURABILITIES, "GROWS": ("no", "yes")}
"""The directives that every script's header has, and their values."""
DIRECTIVES = (*ALLOWED, "VERBS", "EACH", "GUARDED", "READS", "KEYS", "ARGV", "RETURNS")
READING = frozenset(
    (
        *("EXISTS", "HEXISTS", "HGET", "HGETALL", "HLEN", "HMGET", "HSCAN", "SCARD", "TIME"),
        *("ZCARD", "ZCOUNT", "ZRANGE", "ZRANGEBYLEX", "ZRANGEBYSCORE", "ZRANK"),
        *("ZREVRANGEBYSCORE", "ZSCORE"),
    )
)
"""
Commands that a script which READS may call itself. In the shared files the server sees to it.
"""
_EACH_LOOP = """
local said, many, beside, replies = {{unpack({arguments}, 2)}}, tonumber({arguments}[1]), {{}}, {{}}
for i = many + 1, #{keys} do beside[#beside + 1] = {keys}[i] end
local prefixes = {keys}
for i = 1, many do
  local here = {{prefixes[i], unpack(beside)}}
  {begin}
  replies[i] = run(verb)
end
return replies
"""
"""
Runs ``verb`` for each of the first ``ARGV[1]`` keys, with what stands behind these and the rest of
the arguments.
"""
_VALUE = re.compile(r"--\[\[(\w+)\]\]")
_COMMAND = re.compile(r"redis\.p?call\(\s*'(\w+)'")
_DIRECTIVE = re.compile(r"-- ([A-Z]{4,})\b *(.*)")
_PREPARED = "local function prepare()"  # in a prelude: to be called before each verb


@dataclass(frozen=True, slots=True)
class ScriptHeader:
    """
    Holds the needs of a script, as the comment at its head states them.

    ``durability``: what its answers wait for. ``none``: nothing, for they show what the primary
    has, or are repeated until they have had their effect; ``queue``: the durability of the queue in
    whose shard it runs; ``system``: that of the system's own queues; ``strongest``: the strongest
    that the store has. ``grows``: it makes the store grow, and is refused before it is sent while
    only the margin is free. ``verbs``: files of its folder that stand before it, as functions.
    ``each``: it can be run for several shards of one server in one call. ``guarded``: of a plain
    script, that it touches more than its first key. ``reads``: it writes nothing, whatever it
    finds, and runs in a copy of the data, too.
    """

    durability: str
    grows: bool
    verbs: tuple[str, ...] = ()
    each: bool = False
    guarded: bool = False
    reads: bool = False


def header_of(place: str, text: str) -> ScriptHeader:
    """
    Parse the header of a script; ``place`` names its file in messages.

    Raises: ValueError: a directive is unknown, missing, doubled, or has a value that is not
    allowed.
    """
    said: dict[str, str] = {}
    for line in text.splitlines():
        if not line.startswith("--"):
            break
        found = _DIRECTIVE.match(line)
        if found is None:
            continue
        name = found[1]
        if name not in DIRECTIVES:
            raise ValueError(
                f"{place}: its header has an unknown directive {name}; there are"
                f" {', '.join(DIRECTIVES)}"
            )
        if name in said:
            raise ValueError(f"{place}: its header says {name} twice")
        said[name] = found[2].strip()
    for name, values in ALLOWED.items():
        if said.get(name) not in values:
            told = f"says {name} {said[name]}" if name in said else f"has no {name}"
            raise ValueError(f"{place}: its header {told}; allowed are {', '.join(values)}")
    if "EACH" in said and said["DURABILITY"] != "none":
        raise ValueError(
            f"{place}: a script that is run for EACH of several shards waits for no durability: say"
            " none"
        )
    if "READS" in said:
        _check_reading(place, text, said)
    return ScriptHeader(
        said["DURABILITY"],
        said["GROWS"] == "yes",
        tuple(said.get("VERBS", "").split()),
        "EACH" in said,
        "GUARDED" in said,
        "READS" in said,
    )


def _check_reading(place: str, text: str, said: Mapping[str, str]) -> None:
    """Check a script that says it READS. Raises: ValueError: it does more, or says so."""
    if said["DURABILITY"] != "none" or said["GROWS"] != "no" or "VERBS" in said:
        raise ValueError(
            f"{place}: a script that READS waits for no durability, grows nothing and has no VERBS"
        )
    if writing := sorted({name for name in _COMMAND.findall(text) if name not in READING}):
        raise ValueError(f"{place}: its header says READS, and it calls {', '.join(writing)}")


@dataclass(frozen=True, slots=True)
class Script:
    """
    Holds one script as it is sent: ``name`` is ``room.file``, ``sha`` what EVALSHA names.

    ``function`` is its name in the library, for FCALL; empty where it stands in none. ``guarded``:
    on a cluster, it names a key that never exists beside its own, so that it is not run while a
    part of them is on the move (docs/decisions/0016-redis-cluster.md). ``durability``, ``grows``
    and ``reads`` are those of its :class:`ScriptHeader`.
    """

    name: str
    source: bytes
    sha: str
    function: str
    guarded: bool
    durability: str
    grows: bool
    reads: bool


def _read(package: str) -> Iterator[tuple[str, str]]:
    folder = resources.files(package) / "lua"
    if folder.is_dir():
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            if path.name.endswith(".lua"):
                yield path.name, path.read_text("utf-8")


@dataclass(frozen=True)
class SharedLua:
    """
    Names the Lua that stands before every script of a shard.

    ``files`` lie in the folder ``lua/shared`` of ``package``, and stand in this order. ``values``:
    what takes the place of each ``--[[NAME]]``, there and in the scripts.
    """

    package: str
    files: tuple[str, ...]
    values: Mapping[str, str]

    def rendered(self, text: str) -> str:
        """Return the text with its values. Raises: KeyError: one of them is not known."""
        return _VALUE.sub(lambda found: self.values[found[1]], text)


def shared_text(shared: SharedLua) -> str:
    """Return the files that stand before every script, as one text."""
    folder = resources.files(shared.package) / "lua" / "shared"
    texts = [(folder / name).read_text("utf-8") for name in shared.files]
    return shared.rendered("\n".join(texts))


def _registered(function: str, body: str, *, reads: bool) -> str:
    """Return the text by which a library has a function; one that reads may run in copies."""
    callback = f"function(keys, arguments){body}end"
    if not reads:
        return f"redis.register_function('{function}', {callback})"
    named = f"function_name = '{function}'"
    return (
        f"redis.register_function({{ {named}, callback = {callback}, flags = {{ 'no-writes' }} }})"
    )


def _sha(source: bytes) -> str:
    return hashlib.sha1(source, usedforsecurity=False).hexdigest()


class Scripts:
    """
    Keeps every script of the product.

    ``shared`` is a package and files of its folder ``lua/shared``, put before each script of
    ``packages`` in this order; a package's ``prelude.lua`` comes next. The shared files'
    ``begin(KEYS, ARGV)``, the prelude's ``prepare()`` where it has one, and ``run(verb)`` are
    called with the script as a function. A script's header says what it needs: see
    :class:`ScriptHeader`.

    Packages in ``plain`` get nothing put before their scripts.

    The same text also makes a library of functions, read by the server once: on an ``embedded``
    store scripts are run from it, which spares the server building every shared function anew at
    each call. Scripts that the library cannot run are run by EVALSHA.
    """

    def __init__(
        self, shared: SharedLua, packages: Sequence[str], plain: Sequence[str] = ()
    ) -> None:
        self._shared = shared
        head = shared_text(shared)
        self.embedded = False  # the store is one of ours: see use_library
        self.limit_s = PATIENCE_S
        """
        How long scripts wait from when an embedded store began to refuse them; each waits for a
        while at least, so that no caller asks again and again without a pause.
        """
        self._refused_since = self._refused_at = float("-inf")  # first and latest of a row
        # the server has no library now: scripts run without it until the server takes it
        self._missing = False
        self._offered_at = float("-inf")
        self._scripts: dict[str, Script] = {}
        self.times = Family(SCRIPTS)
        self._library = ["local KEYS, ARGV", head]
        for package in packages:
            self._add(package, head)
        for package in plain:
            self._add_plain(package)
        text = "\n".join(self._library)
        self.library = f"#!lua name=tidewarden_{_sha(text.encode())[:16]}\n{text}\n".encode()
        """
        The source of the library. Its name follows from its text, so that nodes of two versions
        have one each.
        """

    def _add_plain(self, package: str) -> None:
        for name, text in _read(package):
            header = header_of(f"{package}/lua/{name}", text)
            self._keep(package, name, text, "", header, guarded=header.guarded)

    def _keep(
        self,
        package: str,
        file: str,
        text: str,
        function: str,
        header: ScriptHeader,
        *,
        guarded: bool = True,
    ) -> None:
        name = f"{package.rpartition('.')[2]}.{file.removesuffix('.lua')}"
        source = text.encode()
        self._scripts[name] = Script(
            name,
            source,
            _sha(source),
            function,
            guarded,
            header.durability,
            header.grows,
            header.reads,
        )

    def _add(self, package: str, head: str) -> None:
        files = {name: self._shared.rendered(text) for name, text in _read(package)}
        prelude = files.pop(PRELUDE, "")
        begins = "begin(KEYS, ARGV)\n" + ("prepare()\n" if _PREPARED in prelude else "")
        self._library += ["do", prelude]
        for name, text in files.items():
            header = header_of(f"{package}/lua/{name}", text)
            begin = begins + ("effect = 'reads'\n" if header.reads else "")
            before = "".join(
                f"local function {verb}()\n{files[verb + '.lua']}\nend\n" for verb in header.verbs
            )
            body = f"{begin}{before}return run(function()\n{text}\nend)\n"
            source = f"local KEYS, ARGV = KEYS, ARGV\n{trim(head + prelude, body)}{body}"
            room, verb = package.rpartition(".")[2], name.removesuffix(".lua")
            function = f"{room}_{verb}_{_sha(source.encode())[:16]}"
            self._keep(package, name, source, function, header)
            call = begin.replace("KEYS, ARGV", "keys, arguments")
            self._library += [
                "do",
                f"{before}local function verb()\n{text}\nend",
                _registered(function, f"\n{call}return run(verb)\n", reads=header.reads),
            ]
            if header.each:
                here = begin.replace("KEYS, ARGV", "here, said")
                loop = _EACH_LOOP.format(keys="keys", arguments="arguments", begin=here)
                self._library.append(_registered(f"{function}_each", loop, reads=header.reads))
                whole = f"local function verb()\n{text}\nend" + _EACH_LOOP.format(
                    keys="KEYS", arguments="ARGV", begin=here
                )
                source = f"local KEYS, ARGV = KEYS, ARGV\n{trim(head + prelude, whole)}{whole}"
                self._keep(
                    package, name.removesuffix(".lua") + EACH, source, f"{function}_each", header
                )
            self._library.append("end")
        self._library.append("end")

    def __getitem__(self, name: str) -> Script:
        return self._scripts[name]

    def __iter__(self) -> Iterator[Script]:
        return iter(self._scripts.values())

    def load_commands(self, _link: StoreConnection) -> list[Sequence[Arg]]:
        """Return the commands that load every script after connecting, for EVALSHA and FCALL."""
        library: list[Sequence[Arg]] = [("FUNCTION", "LOAD", self.library)] if self.embedded else []
        return [*library, *(("SCRIPT", "LOAD", script.source) for script in self)]

    async def use_library(self, link: StoreClient, embedded: bool) -> None:
        """
        Run scripts from the library from now on, if the store is embedded.

        On an external server no function library is installed.
        """
        self.embedded = embedded
        if not embedded:
            return
        try:
            await link.call("FUNCTION", "LOAD", self.library)
        except Full:  # it is offered again until there is room; nothing needs it
            self._missing = True
            log.warning(
                "the store is full and takes no script library: until it has room, scripts cost it"
                " more"
            )
        except Error as error:
            if not known_already(error):
                raise
        else:
            self._missing = False

    def refused_since(self, now: float) -> float:
        """Note that an embedded store refuses a script for now; return since when it does so."""
        if now - self._refused_at > self.limit_s:
            self._refused_since = now
        self._refused_at = now
        return self._refused_since

    def missed(self, link: CallSender) -> None:
        """
        Offer the library to a server that lacks it, once a second at most.

        Scripts run without it meanwhile.
        """
        self._missing = True
        loop = asyncio.get_running_loop()
        if loop.time() - self._offered_at < OFFER_S:
            return
        self._offered_at = loop.time()
        offered: asyncio.Future[Any] = loop.create_future()
        offered.add_done_callback(self._taken)
        link.send(pack(("FUNCTION", "LOAD", self.library)), offered)

    def _taken(self, offered: asyncio.Future[Any]) -> None:
        error = None if offered.cancelled() else offered.exception()
        if error is None or known_already(error):
            self._missing = False
        else:
            log.debug("the store does not take the script library: %s", error)

    def run(
        self, link: CallSender, name: str, keys: Sequence[str], args: Sequence[Arg]
    ) -> asyncio.Future[Any]:
        """
        Run the script ``name`` and return a future of its reply.

        Raises (in the future): what :meth:`StoreConnection.call` raises; refusals of the script by
        their word.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(link, name, keys, args, FutureReply(future))
        return future

    def send(
        self,
        link: CallSender,
        name: str,
        keys: Sequence[str],
        args: Sequence[Arg],
        receiver: ScriptReceiver,
    ) -> None:
        """
        Run the script ``name`` for ``receiver``, which gets what :meth:`run` returns or raises.

        Raises: UnicodeEncodeError: an argument is no text; nothing was sent.
        """
        script = self._scripts[name]
        if link.clustered and script.guarded:
            keys = (*keys, f"{keys[0]}{GUARD}")
        in_library = self.embedded and script.function
        if in_library and self._missing:
            self.missed(link)
        way = 0 if in_library and not self._missing else 1
        receiver.run = ScriptRun(self, link, script, (len(keys), *keys, *args), way)
        receiver.run.send(receiver)


class ScriptReceiver(ReplySink, Protocol):
    """
    Gets the reply of a script.

    ``run`` is set as the script is sent: an error is the script's own only if
    :meth:`ScriptRun.again` did not send it in another way.
    """

    run: ScriptRun | None


class ScriptRun:
    """
    Runs a script once at a server.

    Where the server cannot run it in one way, the next is tried: from the library, by its hash,
    with its text.
    """

    __slots__ = ("_args", "_began", "_link", "_script", "_scripts", "_way")

    def __init__(
        self, scripts: Scripts, link: CallSender, script: Script, args: tuple[Arg, ...], way: int
    ) -> None:
        self._scripts = scripts
        self._link = link
        self._script = script
        self._args = args
        self._way = way
        self._began = monotonic()

    def ended(self) -> None:
        """Note that the answer was read."""
        times = self._scripts.times.of(self._script.name)
        times.observe(monotonic() - self._began)

    def send(self, receiver: ReplySink) -> None:
        """
        Send the script for ``receiver``.

        Raises: UnicodeEncodeError: an argument is no text; nothing was sent.
        """
        said: tuple[Arg, Arg]
        if self._way == 0:
            said = ("FCALL", self._script.function)
        elif self._way == 1:
            said = ("EVALSHA", self._script.sha)
        else:
            said = ("EVAL", self._script.source)
        self._link.send(pack((*said, *self._args)), receiver, self._args[1])

    def again(self, error: BaseException, receiver: ReplySink) -> bool:
        """Send the script in the next way if the server refused this one; return whether it did."""
        if not _not_run(self._way, error):
            return False
        if self._way == 0 and not isinstance(error, Full):
            self._scripts.missed(self._link)
        self._way += 1
        self.send(receiver)
        return True

    def later(self, error: BaseException, receiver: ReplySink) -> bool:
        """
        Send the script once more in a moment, if that may help; returns whether it will be sent.

        It helps where an embedded store did nothing because too few copies follow it now: the nodes
        see to it that more do.
        """
        if not (isinstance(error, TooFewCopies) and self._scripts.embedded):
            return False
        now = monotonic()
        since = self._scripts.refused_since(now)
        until = min(since, self._began) + self._scripts.limit_s
        if now > max(self._began + HOPELESS_S, until):
            return False
        asyncio.get_running_loop().call_later(AGAIN_S, self._once_more, receiver)
        return True

    def _once_more(self, receiver: ReplySink) -> None:
        if not receiver.done():
            self.send(receiver)


class FutureReply:
    """Passes the reply of a script on to a future."""

    __slots__ = ("_future", "done", "run")

    def __init__(self, future: asyncio.Future[Any]) -> None:
        self._future = future
        self.run: ScriptRun | None = None
        self.done = future.done

    def set_result(self, result: Any, /) -> None:
        if self.run is not None:
            self.run.ended()
        self._future.set_result(result)

    def set_exception(self, exception: BaseException, /) -> None:
        run = self.run
        if run is None or not (run.again(exception, self) or run.later(exception, self)):
            self._future.set_exception(exception)


def _not_run(way: int, error: BaseException) -> bool:
    """
    Return whether the server refused the script before its first line.

    Then a call in another way is no repetition. A full store refuses a whole FCALL; by EVALSHA it
    refuses only what grows (https://valkey.io/topics/lua-api, script flags).
    """
    if way == 0:
        return isinstance(error, Full) or (
            isinstance(error, Error) and "unction not found" in str(error)
        )
    return way == 1 and isinstance(error, Error) and str(error).startswith("NOSCRIPT")
