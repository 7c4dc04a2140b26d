"""
The disk of an embedded store is full to the last byte: that is said, nothing acknowledged is lost,
and it goes on when there is room.
"""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
import redis
from support.cluster.disks import SmallDisk, missing_mounts
from support.cluster.harness import Cluster, Node, background, serving, until

from tidewarden.clock import SystemClock
from tidewarden.config.load import Store
from tidewarden.store.embedded.server import EmbeddedStore

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]


def not_ready(node: Node) -> str:
    """Why, by its health; "": it is."""
    answer = node.http("/health/ready")
    return str(answer.json()["reason"]) if answer.status_code == 503 else ""


@pytest.mark.parametrize("fsync", ["everysec", "always"])
def test_a_full_disk_is_said_and_survived(
    request: pytest.FixtureRequest, tmp_path: Path, fsync: str
) -> None:
    if why := missing_mounts(tmp_path):
        pytest.skip(why)
    disk = SmallDisk(tmp_path / "n0")
    made = Cluster(tmp_path, nodes=1, store__url='"embedded"', store__fsync=f'"{fsync}"')
    try:
        with serving(request, made):
            node, kept = made.nodes["n0"], []
            refused = ""
            for number in range(100_000):
                if number == 20:
                    disk.fill()
                try:
                    kept.append(node.say("Q.PUT", "q", "x" * 1000, "ID", f"t{number}"))
                except redis.ResponseError as error:
                    refused = str(error)
                    break
            assert refused.startswith("STOREDOWN ")
            health = until(lambda: not_ready(node), what="it says that it cannot serve")
            print(f"{fsync}: {len(kept)} puts; then {refused!r}; {health!r}")
            assert "store" in health
            disk.free()
            until(
                lambda: node.http("/health/ready").status_code == 200,
                what="it serves again, with nobody's help",
            )
            assert node.say("Q.PUT", "q", "x", "ID", "after") == "after"
            for task_id in (*kept, "after"):
                assert node.say("Q.PEEK", "q", task_id)
            with node.client() as client:
                (row,) = client.execute_command("Q.TAKE", "FROM", "q")
                assert client.execute_command("Q.ACK", *row[:3]) == "OK"
    finally:
        disk.close()


async def test_a_write_that_was_cut_short_by_a_full_disk_does_not_end_the_log(
    tmp_path: Path,
) -> None:
    """
    After a rewrite of its log, the server leaves zeros where it had come to, and refuses them when
    it starts anew.
    """
    if why := missing_mounts(tmp_path):
        pytest.skip(why)
    disk = SmallDisk(tmp_path / "n0")
    store = EmbeddedStore(disk.folder / "store", Store(), "c", "secret", SystemClock())
    try:
        await store.start()
        async with background(store.run()):
            with redis.Redis.from_url(store.url) as client:
                client.bgrewriteaof()
                await asyncio.to_thread(until, lambda: not rewriting(client), what="a new log")
                disk.fill(free_bytes=8192)
                client.set("cut short", "x" * 100_000)
                with pytest.raises(redis.ResponseError, match="MISCONF"):
                    client.set("refused", 1)
                disk.free()
                await asyncio.to_thread(until, lambda: writes(client), what="it writes again")
                client.set("later", 1)
            view = store.view
            assert store.pid is not None
            os.kill(store.pid, signal.SIGKILL)
            await asyncio.to_thread(until, lambda: store.view > view, what="it starts again")
            with redis.Redis.from_url(store.url) as client:
                assert client.strlen("cut short") == 100_000
                assert client.exists("later", "written") == 2
    finally:
        await store.stop()
        disk.close()


def rewriting(client: redis.Redis) -> bool:
    found = client.info("persistence")
    return bool(found["aof_rewrite_in_progress"] or found["aof_rewrite_scheduled"])


def writes(client: redis.Redis) -> bool:
    try:
        return bool(client.set("written", 1))
    except redis.ResponseError:
        return False
