"""Which valkey-server is run, and what is said of one that is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidewarden.errors import ConfigError
from tidewarden.store.embedded.binary import find_binary


async def test_without_a_name_it_is_the_one_that_is_installed_with_us() -> None:
    found = await find_binary("")
    assert os.access(found, os.X_OK)
    assert await find_binary(str(found)) == found


async def test_a_wrong_binary_is_named(tmp_path: Path) -> None:
    plain, broken = tmp_path / "plain", tmp_path / "broken"
    plain.write_text("no program")
    broken.write_text("no program either")
    broken.chmod(0o700)
    for binary, said in {
        "/nonexistent/valkey": "'/nonexistent/valkey' is no program",
        "no-such-valkey-server": "'no-such-valkey-server' is no program",
        str(plain): "/plain('| )",  # a superuser's PATH look-up differs
        str(broken): "/broken cannot be run",
        "/bin/sleep": "/bin/sleep is no valkey-server .asked for its --version it said 'sleep ",
    }.items():
        with pytest.raises(ConfigError, match=f"store.binary: .*{said}"):
            await find_binary(binary)


async def test_an_old_server_is_refused(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_text("#!/bin/sh\necho 'Redis server v=5.0.14 sha=00000000:0 malloc=libc'\n")
    old.chmod(0o700)
    with pytest.raises(ConfigError, match=r"old is version 5\.0; 6\.2 is the oldest allowed"):
        await find_binary(str(old))
