"""
Locks on three node processes: their holder's connection is cut, its node is killed, its node is
stopped and goes on.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
from support.cluster.harness import Cluster, cluster_of_module, until_async

from tidewarden.client.replies import mapped

LONG_MS = 120_000


nodes = cluster_of_module()


@pytest.mark.parametrize("how", ["close", "kill", "freeze"])
async def test_the_next_in_line_gets_the_lock_of_one_that_is_gone(
    healed: Cluster, how: str
) -> None:
    leader = healed.leader()
    holding, waiting, third = (*healed.others(leader), leader)
    holder, waiter = holding.aclient(), waiting.aclient()
    boot = holding.status()["holder"]
    old = await holder.execute_command("L.ACQUIRE", how, LONG_MS, "KEY", "k1")
    assert await waiter.execute_command("L.ACQUIRE", how, LONG_MS) is None
    asked = asyncio.ensure_future(
        waiter.execute_command("L.ACQUIRE", how, LONG_MS, "WAIT", LONG_MS)
    )
    await until_async(lambda: waiting.metric("tidewarden_resp_waiting") == 1, what="it waits")
    begun = time.monotonic()
    if how == "close":
        await holder.aclose()
    elif how == "kill":
        holding.kill()
    else:
        holding.freeze()
    fence = await asyncio.wait_for(asked, LONG_MS / 2000)  # not by the end of the lease
    print(f"{how}: the next in line has the lock after {(time.monotonic() - begun) * 1000:.1f} ms")
    assert fence > old
    if how == "freeze":
        holding.thaw()
        await until_async(lambda: holding.status()["holder"] != boot, what="it has registered anew")
        with pytest.raises(redis.ResponseError, match="NOTHELD"):
            await holder.execute_command("L.RENEW", how, old, LONG_MS)
    with pytest.raises(redis.ResponseError, match="NOTHELD"):
        third.say("L.RELEASE", how, old)
    assert await waiter.execute_command("L.RENEW", how, fence, LONG_MS) == "OK"
    locks, cursor = third.say("L.LIST")
    assert (len(locks), cursor) == (1, "")
    assert await waiter.execute_command("L.RELEASE", how, fence) == "OK"
    await asyncio.gather(holder.aclose(), waiter.aclose())
    assert not healed.audit("_locks", 8)


async def test_a_retry_on_another_node_has_the_same_lock(healed: Cluster) -> None:
    """
    The connection broke before the answer came: by its KEY the caller gets the same fence, and
    keeps it.
    """
    here, there, third = healed.nodes.values()
    first, second = here.aclient(), there.aclient()
    fence = await first.execute_command("L.ACQUIRE", "retried", LONG_MS, "KEY", b"\x00k")
    assert (
        await second.execute_command("L.ACQUIRE", "retried", LONG_MS, "KEY", b"\x00k", "WAIT", 100)
        == fence
    )
    await first.aclose()
    assert third.say("L.ACQUIRE", "retried", LONG_MS, "WAIT", 200) is None
    with pytest.raises(redis.ResponseError, match="DENIED"):
        third.say("Q.DELETE", "_locks", "retried", "FORCE")
    assert await second.execute_command("L.RELEASE", "retried", fence) == "OK"
    await second.aclose()


async def test_commands_run_one_after_the_other(healed: Cluster, tmp_path: Path) -> None:
    """
    ``tidewarden lock run`` on every node: each command finds what the one before left, and its own
    fence is greater.
    """
    book = tmp_path / "book"
    book.write_text("0 0\n")
    script = (
        "import os, time\n"
        f"book = {str(book)!r}\n"
        "count, fence = map(int, open(book).read().split())\n"
        "own = int(os.environ['TIDEWARDEN_FENCE'])\n"
        "assert own > fence\n"
        "time.sleep(0.05)\n"
        "open(book, 'w').write(f'{count + 1} {own}')\n"
    )
    urls = [
        f"redis://admin:{healed.secret}@127.0.0.1:{node.base_port}"
        for node in healed.nodes.values()
    ]
    words = ("lock", "run", "book", "--lease-ms", "30000", "--", sys.executable, "-c", script)
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tidewarden", *words],
            env={"TIDEWARDEN_URL": url, "PYTHONPATH": ":".join(sys.path)},
        )
        for url in urls
    ]
    assert [await asyncio.to_thread(process.wait, 120) for process in running] == [0] * 3
    assert book.read_text().startswith("3 ")
    assert not healed.audit("_locks", 8)


async def test_a_command_goes_on_when_its_node_dies(healed: Cluster, tmp_path: Path) -> None:
    """
    Its connections are made again at another node, within the grace of their session: the same
    fence, to the end.
    """
    secret = healed.folder / "secrets" / "admin.secret"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text(healed.secret)
    done = tmp_path / "done"
    script = f"import os, time\nwhile not os.path.exists({str(done)!r}): time.sleep(0.02)\n"
    words = (
        "lock",
        "run",
        "long",
        "--lease-ms",
        "20000",
        "--data-dir",
        str(healed.folder),
        "--",
        sys.executable,
        "-c",
        script,
    )
    first, *others = healed.nodes.values()
    with subprocess.Popen(
        [sys.executable, "-m", "tidewarden", *words], env={"PYTHONPATH": ":".join(sys.path)}
    ) as process:
        await until_async(lambda: others[0].say("L.LIST")[0], what="it holds the lock")
        await asyncio.sleep(1)
        fence = mapped(others[0].say("L.PEEK", "long"))["fence"]
        first.kill()
        await until_async(
            lambda: "n0" not in [row[0] for row in registered(healed)], what="its node is buried"
        )
        await asyncio.sleep(6)  # longer than the grace
        assert process.poll() is None
        assert mapped(others[0].say("L.PEEK", "long"))["fence"] == fence
        done.touch()
        assert await asyncio.to_thread(process.wait, 60) == 0
    assert not healed.audit("_locks", 8)


def registered(cluster: Cluster) -> list[tuple[str, int]]:
    """The nodes that the store knows, and the boot of each."""
    with cluster.valkey.client() as store:
        return [
            (name.decode(), int(seen.split()[0]))
            for name, seen in store.hgetall("{tidewarden}:nodes").items()
        ]
