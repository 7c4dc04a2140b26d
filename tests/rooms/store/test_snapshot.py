"""A copy of a store at one moment."""

from __future__ import annotations

import asyncio
import hashlib

import pytest
from support.store.servers import StoreServer

from tidewarden.errors import StoreDown
from tidewarden.store.snapshot import snapshot


async def copied(url: str) -> bytes:
    return b"".join([piece async for piece in snapshot(url)])


async def test_it_is_what_the_engine_writes_for_a_replica(valkey: StoreServer) -> None:
    valkey.client.set("a", b"x" * 3_000_000)
    valkey.client.config_set("repl-diskless-sync-delay", 0)
    try:
        data = await copied(f"unix://{valkey.path}")
        assert data[:5] in (b"REDIS", b"VALKE")
        valkey.client.config_set("repl-diskless-sync", "no")  # then its length is known beforehand
        other = await copied(f"unix://{valkey.path}")
        assert other[:5] == data[:5]
        assert abs(len(other) - len(data)) < 100
    finally:
        valkey.client.config_set("repl-diskless-sync", "yes")
        valkey.client.delete("a")


async def serve(answers: list[bytes]) -> tuple[asyncio.Server, str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for one in answers:
            while not (await reader.readline()).startswith((b"$4", b"$8")):
                continue  # AUTH and SYNC, or REPLCONF
            writer.write(one)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    return server, f"redis://:pw@127.0.0.1:{server.sockets[0].getsockname()[1]}"


MARK = hashlib.sha256(b"mark").hexdigest()[:40].encode()
BODY = bytes(range(256)) * 9000


@pytest.mark.parametrize(
    ("payload", "found"),
    [
        (b"\n\n$%d\r\n" % len(BODY) + BODY, BODY),
        (b"\n$EOF:" + MARK + b"\r\n" + BODY + MARK, BODY),
        (b"$EOF:" + MARK + b"\r\n" + MARK, b""),
        (b"$%d\r\n" % len(BODY) + BODY[:-1], "closed the connection"),
        (b"$EOF:" + MARK + b"\r\n" + BODY, "closed the connection"),
        (b"-NOPERM no", "closed the connection"),
        (b"-NOPERM no\r\n", "gives no copy: -NOPERM no"),
    ],
    ids=["length", "mark", "empty", "short", "no mark", "cut", "refused"],
)
async def test_it_is_whole_or_an_error(payload: bytes, found: bytes | str) -> None:
    server, url = await serve([b"+OK\r\n", b"+OK\r\n", b"+OK\r\n", payload])
    async with server:
        if isinstance(found, bytes):
            assert await copied(url) == found
        else:
            with pytest.raises(StoreDown, match=found):
                await copied(url)


async def test_a_refused_secret_is_said() -> None:
    server, url = await serve([b"-WRONGPASS no\r\n"])
    async with server:
        with pytest.raises(StoreDown, match="refuses AUTH: -WRONGPASS no"):
            await copied(url)
