"""Lua scripts by name: loaded from the packages' ``lua`` folders, run by EVALSHA, sent again where a server forgot them."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tidewarden.errors import Error
from tidewarden.store.link import Arg, Link, Receiver, pack
from tidewarden.store.trim import trim

PRELUDE = "prelude.lua"


@dataclass(frozen=True, slots=True)
class Script:
    """One script as it is sent: ``name`` is ``room.file``, ``sha`` what EVALSHA names."""

    name: str
    source: bytes
    sha: str


def _read(package: str) -> Iterator[tuple[str, str]]:
    folder = resources.files(package) / "lua"
    if folder.is_dir():
        for path in sorted(folder.iterdir(), key=lambda path: path.name):
            if path.name.endswith(".lua"):
                yield path.name, path.read_text("utf-8")


class Scripts:
    """
    Every script of the product. ``shared`` is a file put before each script of ``packages``; a package's ``prelude.lua`` comes next.
    The script itself is handed to the shared file's ``run(verb)`` as a function.

    Packages in ``plain`` get nothing put before theirs.
    """

    def __init__(self, shared: tuple[str, str], packages: Sequence[str], plain: Sequence[str] = ()) -> None:
        package, name = shared
        head = dict(_read(package))[name]
        self._scripts: dict[str, Script] = {}
        for package in packages:
            self._add(package, head, skip=(name,))
        for package in plain:
            self._add(package, "", skip=())

    def _add(self, package: str, head: str, skip: tuple[str, ...]) -> None:
        files = dict(_read(package))
        head += files.get(PRELUDE, "")
        room = package.rpartition(".")[2]
        for name, text in files.items():
            if name not in (*skip, PRELUDE):
                body = f"return run(function()\n{text}\nend)\n" if head else text
                source = (trim(head, body) + body).encode()
                script = Script(
                    f"{room}.{name.removesuffix('.lua')}",
                    source,
                    hashlib.sha1(source, usedforsecurity=False).hexdigest(),
                )
                self._scripts[script.name] = script

    def __getitem__(self, name: str) -> Script:
        return self._scripts[name]

    def __iter__(self) -> Iterator[Script]:
        return iter(self._scripts.values())

    def load_commands(self, _link: Link) -> list[Sequence[Arg]]:
        """What a link says after connecting, so that EVALSHA finds every script."""
        return [("SCRIPT", "LOAD", script.source) for script in self]

    def run(self, link: Link, name: str, keys: Sequence[str], args: Sequence[Arg]) -> asyncio.Future[Any]:
        """
        Run the script ``name``; the reply as it comes.

        Raises (in the future): what :meth:`Link.call` raises; refusals of the script by their word.
        """
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.send(link, name, keys, args, future)
        return future

    def send(self, link: Link, name: str, keys: Sequence[str], args: Sequence[Arg], receiver: Receiver) -> None:
        """
        Run the script ``name`` for ``receiver``, which gets what :meth:`run` returns or raises.

        Raises: UnicodeEncodeError: an argument is no text; nothing was sent.
        """
        script = self._scripts[name]
        said = ("EVALSHA", script.sha, len(keys), *keys, *args)
        link.send(pack(said), _Run(link, script, said, receiver))


class _Run:
    """One script under way: passes its reply on, or sends it whole when the server has forgotten it."""

    __slots__ = ("_link", "_receiver", "_said", "_script", "done", "set_result")

    def __init__(self, link: Link, script: Script, said: tuple[Arg, ...], receiver: Receiver) -> None:
        self._link = link
        self._script = script
        self._said = said
        self._receiver = receiver
        self.done = receiver.done
        self.set_result = receiver.set_result

    def set_exception(self, exception: BaseException, /) -> None:
        if isinstance(exception, Error) and str(exception).startswith("NOSCRIPT"):
            # It was not run: sending it whole is no repetition.
            self._link.send(pack(("EVAL", self._script.source, *self._said[2:])), self._receiver)
        else:
            self._receiver.set_exception(exception)
