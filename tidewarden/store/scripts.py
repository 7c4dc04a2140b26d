"""Lua scripts by name: loaded from the packages' ``lua`` folders, run by EVALSHA, sent again where a server forgot them."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tidewarden.errors import Error, Full
from tidewarden.store.link import Link, pack
from tidewarden.store.receiver import Receiver
from tidewarden.store.refusals import known_already
from tidewarden.store.route import Arg, Route, Sender
from tidewarden.store.trim import trim

log = logging.getLogger("tidewarden.store")

PRELUDE = "prelude.lua"
OFFER_S = 1.0
GUARD = "~"  # behind a script's first key, a key that is never written
EACH = ".each"
"""Behind the name of a script: the same for several shards of one server in one call."""
_EACH = "\n-- EACH "  # in the header of a script that can be run so: its answers wait for no durability
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
"""Runs ``verb`` for each of the first ``ARGV[1]`` keys, with what stands behind these and the rest of the arguments."""
_PARTS = re.compile(r"^-- VERBS +(.*)$", re.MULTILINE)
_GUARDED = "\n-- GUARDED "  # in the header of a plain script that touches more than its first key
_PREPARED = "local function prepare()"  # in a prelude: to be called before each verb


@dataclass(frozen=True, slots=True)
class Script:
    """
    One script as it is sent: ``name`` is ``room.file``, ``sha`` what EVALSHA names.

    ``function`` is its name in the library, for FCALL; empty where it stands in none. ``guarded``: on a cluster, it names a key
    that never exists beside its own, so that it is not run while a part of them is on the move (docs/decisions/0016-redis-cluster.md).
    """

    name: str
    source: bytes
    sha: str
    function: str
    guarded: bool = True


def _read(package: str) -> Iterator[tuple[str, str]]:
    folder = resources.files(package) / "lua"
    if folder.is_dir():
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            if path.name.endswith(".lua"):
                yield path.name, path.read_text("utf-8")


def shared_text(shared: tuple[str, ...]) -> str:
    """The files that stand before every script: of a package and its folder ``lua/shared``, in this order."""
    folder = resources.files(shared[0]) / "lua" / "shared"
    return "\n".join((folder / name).read_text("utf-8") for name in shared[1:])


def _sha(source: bytes) -> str:
    return hashlib.sha1(source, usedforsecurity=False).hexdigest()


class Scripts:
    """
    Every script of the product. ``shared`` is a package and files of its folder ``lua/shared``, put before each script of
    ``packages`` in this order; a package's
    ``prelude.lua`` comes next. The shared files' ``begin(KEYS, ARGV)``, the prelude's ``prepare()`` where it has one, and
    ``run(verb)`` are called with the script as a function. A header line ``-- VERBS a b`` puts the folder's ``a.lua`` and
    ``b.lua`` before it, as functions.

    Packages in ``plain`` get nothing put before theirs.

    The same text also makes a library of functions, read by the server once: with ``library`` scripts are run from it, which
    spares the server building every shared function anew at each call. What the library cannot do is done by EVALSHA.
    """

    def __init__(
        self, shared: tuple[str, ...], packages: Sequence[str], plain: Sequence[str] = (), *, library: bool = False
    ) -> None:
        head = shared_text(shared)
        self.uses_library = library
        self._missing = False  # the server has no library now: scripts are run without until it takes it
        self._offered_at = float("-inf")
        self._scripts: dict[str, Script] = {}
        self._library = ["local KEYS, ARGV", head]
        for package in packages:
            self._add(package, head)
        for package in plain:
            self._add_plain(package)
        text = "\n".join(self._library)
        self.library = f"#!lua name=tidewarden_{_sha(text.encode())[:16]}\n{text}\n".encode()
        """The source of the library. Its name follows from its text, so that nodes of two versions have one each."""

    def _add_plain(self, package: str) -> None:
        for name, text in _read(package):
            self._keep(package, name, text, "", guarded=_GUARDED in text)

    def _keep(self, package: str, file: str, text: str, function: str, *, guarded: bool = True) -> None:
        name = f"{package.rpartition('.')[2]}.{file.removesuffix('.lua')}"
        source = text.encode()
        self._scripts[name] = Script(name, source, _sha(source), function, guarded)

    def _add(self, package: str, head: str) -> None:
        files = dict(_read(package))
        prelude = files.pop(PRELUDE, "")
        begin = "begin(KEYS, ARGV)\n" + ("prepare()\n" if _PREPARED in prelude else "")
        self._library += ["do", prelude]
        for name, text in files.items():
            parts = _PARTS.search(text)
            before = "".join(
                f"local function {part}()\n{files[part + '.lua']}\nend\n"
                for part in (parts[1].split() if parts else ())
            )
            body = f"{begin}{before}return run(function()\n{text}\nend)\n"
            source = f"local KEYS, ARGV = KEYS, ARGV\n{trim(head + prelude, body)}{body}"
            function = f"{package.rpartition('.')[2]}_{name.removesuffix('.lua')}_{_sha(source.encode())[:16]}"
            self._keep(package, name, source, function)
            call = begin.replace("KEYS, ARGV", "keys, arguments")
            self._library += [
                "do",
                f"{before}local function verb()\n{text}\nend",
                f"redis.register_function('{function}', function(keys, arguments)\n{call}return run(verb)\nend)",
            ]
            if _EACH in text:
                here = begin.replace("KEYS, ARGV", "here, said")
                loop = _EACH_LOOP.format(keys="keys", arguments="arguments", begin=here)
                self._library.append(f"redis.register_function('{function}_each', function(keys, arguments){loop}end)")
                whole = f"local function verb()\n{text}\nend" + _EACH_LOOP.format(
                    keys="KEYS", arguments="ARGV", begin=here
                )
                source = f"local KEYS, ARGV = KEYS, ARGV\n{trim(head + prelude, whole)}{whole}"
                self._keep(package, name.removesuffix(".lua") + EACH, source, f"{function}_each")
            self._library.append("end")
        self._library.append("end")

    def __getitem__(self, name: str) -> Script:
        return self._scripts[name]

    def __iter__(self) -> Iterator[Script]:
        return iter(self._scripts.values())

    def load_commands(self, _link: Link) -> list[Sequence[Arg]]:
        """What a link says after connecting, so that EVALSHA and FCALL find every script."""
        library: list[Sequence[Arg]] = [("FUNCTION", "LOAD", self.library)] if self.uses_library else []
        return [*library, *(("SCRIPT", "LOAD", script.source) for script in self)]

    async def use_library(self, link: Route, embedded: bool) -> None:
        """From now on run scripts from the library, if the store is embedded: a server of one's own keeps nothing of ours but data."""
        self.uses_library = embedded
        if not embedded:
            return
        try:
            await link.call("FUNCTION", "LOAD", self.library)
        except Full:  # it is offered again until there is room; nothing needs it
            self._missing = True
            log.warning("the store is full and takes no script library: until it has room, scripts cost it more")
        except Error as error:
            if not known_already(error):
                raise
        else:
            self._missing = False

    def missed(self, link: Sender) -> None:
        """The server has not the library: offer it, once a second at most. Scripts are run without meanwhile."""
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

    def run(self, link: Sender, name: str, keys: Sequence[str], args: Sequence[Arg]) -> asyncio.Future[Any]:
        """
        Run the script ``name``; the reply as it comes.

        Raises (in the future): what :meth:`Link.call` raises; refusals of the script by their word.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(link, name, keys, args, future)
        return future

    def send(self, link: Sender, name: str, keys: Sequence[str], args: Sequence[Arg], receiver: Receiver) -> None:
        """
        Run the script ``name`` for ``receiver``, which gets what :meth:`run` returns or raises.

        Raises: UnicodeEncodeError: an argument is no text; nothing was sent.
        """
        script = self._scripts[name]
        if link.clustered and script.guarded:
            keys = (*keys, f"{keys[0]}{GUARD}")
        call = _Call(self, link, script, (len(keys), *keys, *args), receiver)
        in_library = self.uses_library and script.function
        if in_library and self._missing:
            self.missed(link)
        call.send(0 if in_library and not self._missing else 1)


class _Call:
    """A script under way: its reply is passed on, or it is called in the next way where the server could not run it in this one."""

    __slots__ = ("_args", "_link", "_receiver", "_script", "_scripts", "_way", "done", "sent_by", "set_result")

    def __init__(
        self, scripts: Scripts, link: Sender, script: Script, args: tuple[Arg, ...], receiver: Receiver
    ) -> None:
        self._scripts = scripts
        self._link = link
        self._script = script
        self._args = args
        self._receiver = receiver
        self._way = 0
        self.done = receiver.done
        self.set_result = receiver.set_result
        if link.clustered:
            self.sent_by = getattr(receiver, "sent_by", None)

    def send(self, way: int) -> None:
        script = self._script
        self._way = way
        said: tuple[Arg, Arg]
        if way == 0:
            said = ("FCALL", script.function)
        elif way == 1:
            said = ("EVALSHA", script.sha)
        else:
            said = ("EVAL", script.source)
        self._link.send(pack((*said, *self._args)), self, self._args[1])

    def set_exception(self, exception: BaseException, /) -> None:
        if _not_run(self._way, exception):
            if self._way == 0 and not isinstance(exception, Full):
                self._scripts.missed(self._link)
            self.send(self._way + 1)
        else:
            self._receiver.set_exception(exception)


def _not_run(way: int, error: BaseException) -> bool:
    """
    Whether the server refused before the script's first line, so that calling it in another way is no repetition.

    A full store refuses a whole FCALL; by EVALSHA it refuses only what grows (https://valkey.io/topics/lua-api, script flags).
    """
    if way == 0:
        return isinstance(error, Full) or (isinstance(error, Error) and "unction not found" in str(error))
    return way == 1 and isinstance(error, Error) and str(error).startswith("NOSCRIPT")
