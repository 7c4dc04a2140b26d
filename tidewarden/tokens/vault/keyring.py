"""
Reads the key-encryption keys of a node, from a file, the environment or a command.

Each is the base64 of 32 bytes, one a line. Two or more stand there while the cluster goes from one
to another: what was wrapped by any of them opens. A rotation goes to the first. The source is read
again whenever a key turns up that is not known, and before a rotation.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
from collections.abc import Mapping
from pathlib import Path

from tidewarden.config.key_file import make_file, parse_keys, wrapping_key_id
from tidewarden.config.load import Vault
from tidewarden.errors import ConfigError

log = logging.getLogger("tidewarden.tokens")

COMMAND_S = 30.0
OUTPUT_BYTES_MAX = 65_536


class Keyring:
    """
    Holds the keys by their ids, once :meth:`read` has read them; its ``repr`` shows ids alone.
    """

    def __init__(self, settings: Vault, default_file: Path, environ: Mapping[str, str]) -> None:
        """Read the key from ``default_file`` when ``settings`` name no place."""
        self._command = shlex.split(settings.key_command)
        self._variable = settings.key_env
        self._file = Path(settings.key_file) if settings.key_file else default_file
        self._environ = environ
        self._keys: dict[bytes, bytes] = {}

    def __repr__(self) -> str:
        return f"Keyring({self.origin}, {', '.join(key_id.hex() for key_id in self._keys)})"

    @property
    def origin(self) -> str:
        """Say in words where the keys come from."""
        if self._command:
            return f"the command {self._command[0]}"
        return f"the environment variable {self._variable}" if self._variable else str(self._file)

    @property
    def ids(self) -> tuple[bytes, ...]:
        """Return the ids of the keys, the first one's first."""
        return tuple(self._keys)

    def key(self, key_id: bytes) -> bytes | None:
        """Return the key of that id, if it is known."""
        return self._keys.get(key_id)

    async def read(self, *, make: bool = False) -> None:
        """
        Read the keys, anew if they were read before.

        ``make``: the file is made, 0600, when it is not there.

        Raises: ConfigError: there is none, or something there is no key. What was known is known
        still.
        """
        if self._command:
            text = await self._output()
        elif self._variable:
            found = self._environ.get(self._variable)
            if found is None:
                raise ConfigError(
                    [f"vault.key_env: the environment variable {self._variable} is not set"]
                )
            text = found
        else:
            text = self._content(make=make)
        self._keys = {wrapping_key_id(key): key for key in parse_keys(text, self.origin)}

    def _content(self, *, make: bool) -> str:
        if not self._file.exists():
            if not make:
                raise ConfigError(
                    [
                        f"vault.key_file: {self._file} does not exist, but the store holds data"
                        " sealed with a vault key; copy the vault key of the cluster there"
                    ]
                )
            _made(self._file)
        try:
            text = self._file.read_text("ascii", errors="replace")
        except OSError as error:
            raise ConfigError(
                [f"vault.key_file: {self._file}: {error.strerror or error}"]
            ) from None
        if self._file.stat().st_mode & 0o077:
            log.warning("%s can be read by others than its owner: chmod 600 it", self._file)
        return text

    async def _output(self) -> str:
        """
        Run the command and return what it prints.

        Its standard error goes to ours; neither is in any message of ours.
        """
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
            )
        except OSError as error:
            raise ConfigError(
                [
                    f"vault.key_command: {self._command[0]!r} cannot be run:"
                    f" {error.strerror or error}"
                ]
            ) from None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(COMMAND_S):
                output = await _all_of(process.stdout)
                status = await process.wait()
        except TimeoutError:
            raise ConfigError(
                [f"vault.key_command: no keys from {self._command[0]!r} in {COMMAND_S:g} s"]
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if status:
            raise ConfigError(
                [f"vault.key_command: {self._command[0]!r} ended with status {status}"]
            )
        return output.decode("ascii", "replace")


async def _all_of(stream: asyncio.StreamReader) -> bytes:
    """Read all output, but keep at most the first :data:`OUTPUT_BYTES_MAX` bytes."""
    try:
        return await stream.readexactly(OUTPUT_BYTES_MAX)
    except asyncio.IncompleteReadError as error:
        return error.partial


def _made(path: Path) -> None:
    if make_file(path):
        log.info(
            "made the vault key %s: keep a copy of it elsewhere, nothing sealed opens without it",
            path,
        )
    else:
        log.info("the vault key %s was made by another process", path)
