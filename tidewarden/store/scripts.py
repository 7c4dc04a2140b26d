"""Lua scripts by name: loaded from the packages' ``lua`` folders, run by EVALSHA, sent again where a server forgot them."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from tidewarden.errors import Error
from tidewarden.store.link import Arg, Link
from tidewarden.store.trim import trim

PRELUDE = "prelude.lua"
_PARTS = re.compile(r"^-- VERBS +(.*)$", re.MULTILINE)


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
    The script itself is handed to the shared file's ``run(verb)`` as a function. A header line ``-- VERBS a b`` puts the folder's
    ``a.lua`` and ``b.lua`` before it, as functions ``a`` and ``b``.

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
                parts = _PARTS.search(text)
                for part in parts[1].split() if parts else ():
                    body = f"local function {part}()\n{files[part + '.lua']}\nend\n{body}"
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
        script = self._scripts[name]
        first = link.call("EVALSHA", script.sha, len(keys), *keys, *args)
        if not first.done():
            outer: asyncio.Future[Any] = first.get_loop().create_future()
            first.add_done_callback(lambda done: self._settle(link, script, keys, args, done, outer))
            return outer
        return first

    @staticmethod
    def _settle(
        link: Link,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Arg],
        done: asyncio.Future[Any],
        outer: asyncio.Future[Any],
    ) -> None:
        if done.cancelled():
            return
        error = done.exception()
        if outer.done():
            return  # whoever asked has gone
        if error is None:
            outer.set_result(done.result())
        elif isinstance(error, Error) and str(error).startswith("NOSCRIPT"):
            # It was not run: sending it whole is no repetition.
            again = link.call("EVAL", script.source, len(keys), *keys, *args)
            again.add_done_callback(lambda second: _copy(second, outer))
        else:
            outer.set_exception(error)


def _copy(source: asyncio.Future[Any], target: asyncio.Future[Any]) -> None:
    if source.cancelled():
        return
    error = source.exception()
    if target.done():
        return
    if error is None:
        target.set_result(source.result())
    else:
        target.set_exception(error)
