"""
Answers that promised success and could not be read: every node shows them, and an account that they
cost is saved by hand.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from support.inspect import journal_of
from support.providers.scripted_provider import ScriptedProvider, scripted_provider
from support.tokens import harness
from support.tokens.harness import in_state
from support.tokens.peer_doors import door

from tidewarden import errors
from tidewarden.config.load import Cluster, Config
from tidewarden.config.provider import queue_of
from tidewarden.tokens.journal.journal import Journal
from tidewarden.tokens.journal.peer_queries import SHOWN_MAX, kept_of

SECRET = "the cluster's"
QUEUE = queue_of("p", "c0")
SOON_S = 0.005  # Between the first refusal and the second: a day is 0.7 s.


async def page(_request: web.Request, made: ScriptedProvider, token: str) -> web.Response:
    """A pair as a proxy hands it on that knows better how a page should look."""
    return web.Response(
        text=f"<html><pre>{made.rotate(token).text}</pre></html>", content_type="text/html"
    )


async def test_an_account_is_saved_by_hand_with_what_another_node_keeps(
    valkey: Any, tmp_path: Path
) -> None:
    async with scripted_provider() as endpoint:
        endpoint.faults.append(page)
        chosen = harness.provider(endpoint.url, rotation="single_use")
        one = Config(cluster=Cluster(name="t", members={"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"}))
        async with harness.node(
            valkey, tmp_path / "a", chosen, "n0", config=one, cluster_secret=SECRET, confirm_s=SOON_S
        ) as first, door(first.tokens.answer_peer) as address:  # fmt: skip
            await first.tokens.put("p/a", {"refresh_token": "a.0"})
            lost = await in_state(first, "lost_rotation")
            assert (
                lost["message"]
                == "an earlier refresh was processed but its answer cannot be read; consent is"
                " needed anew"
            )
            assert lost["advice"].startswith(
                "n0 keeps an answer that cannot be read: `token answers PROVIDER/ACCOUNT`"
            )
            assert first.tokens.metrics()["journal_unreadable"] == 1
            (tmp_path / "b").mkdir()
            shutil.copytree(tmp_path / "a" / "secrets", tmp_path / "b" / "secrets")
            two = Config(
                cluster=Cluster(
                    name="t", members={"n0": address, "n1": "127.0.0.1:2", "n2": "127.0.0.1:3"}
                )
            )
            async with harness.node(
                valkey, tmp_path / "b", chosen, "n1", config=two, cluster_secret=SECRET, go=False
            ) as second:  # fmt: skip
                found = await second.tokens.custody.answers("p/a")
                assert found["silent"] == ["n2"]
                (answer,) = found["answers"]
                assert (
                    answer["node"],
                    answer["grant"],
                    answer["generation"],
                    answer["current"],
                ) == ("n0", 1, 1, True)
                token = re.search(rb'"refresh_token": *"([^"]+)"', answer["body"])
                assert token is not None
                await second.tokens.put("p/a", {"refresh_token": token[1].decode()})
                assert (await in_state(second, "fresh"))["generation"] == 3
                (answer,) = (await second.tokens.custody.answers("p/a"))["answers"]
                assert not answer["current"]
                assert (await second.tokens.custody.answers("p/b"))["answers"] == []
                with pytest.raises(errors.NotFound):
                    await second.tokens.custody.answers("q/a")
    assert endpoint.current["a"] == 2


async def test_a_body_in_a_coding_that_nobody_can_undo_is_kept_as_it_came(
    valkey: Any, tmp_path: Path
) -> None:
    body = b"\x8b\x01\x80 whatever brotli makes of a pair"

    async def packed(_request: web.Request, made: ScriptedProvider, token: str) -> web.Response:
        made.rotate(token)
        return web.Response(body=body, headers={"Content-Encoding": "br"})

    async with scripted_provider() as endpoint:
        endpoint.faults.append(packed)
        chosen = harness.provider(endpoint.url, rotation="single_use")
        async with harness.node(valkey, tmp_path, chosen, confirm_s=SOON_S) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await in_state(side, "lost_rotation")
            (answer,) = (await side.tokens.custody.answers("p/a"))["answers"]
            assert answer["body"] == body


async def test_nobody_is_shown_what_came_for_a_former_account_of_that_name(
    valkey: Any, tmp_path: Path
) -> None:
    """
    It may be somebody else's, with tokens in it. The node that keeps it is away while the name
    changes hands, and is there again.
    """
    async with scripted_provider() as endpoint:
        endpoint.faults.append(page)
        chosen = harness.provider(endpoint.url, rotation="single_use")
        alone = Config(
            cluster=Cluster(name="t", members={"n0": "127.0.0.1:1", "n1": "127.0.0.1:2"})
        )
        async with harness.node(
            valkey,
            tmp_path / "a",
            chosen,
            "n0",
            config=alone,
            cluster_secret=SECRET,
            confirm_s=SOON_S,
        ) as first:
            await first.tokens.put("p/a", {"refresh_token": "a.0"})
            await in_state(first, "lost_rotation")
            assert len((await first.tokens.custody.answers("p/a"))["answers"]) == 1
        (tmp_path / "b").mkdir()
        shutil.copytree(tmp_path / "a" / "secrets", tmp_path / "b" / "secrets")
        new = {"refresh_token": "of somebody else", "access_token": "x", "expires_in": 3600}
        async with harness.node(
            valkey, tmp_path / "b", chosen, "n1", config=alone, go=False
        ) as second:
            assert await second.tokens.delete("p/a")
            await second.tokens.put("p/a", new)
        kept = Config(cluster=alone.cluster)
        async with harness.node(
            valkey, tmp_path / "a", chosen, "n0", boot=2, config=kept, cluster_secret=SECRET, go=False
        ) as first, door(first.tokens.answer_peer) as address:  # fmt: skip
            assert first.tokens.metrics()["journal_unreadable"] == 1
            assert (await first.tokens.custody.answers("p/a"))["answers"] == []
            two = Config(cluster=Cluster(name="t", members={"n0": address, "n1": "127.0.0.1:2"}))
            async with harness.node(
                valkey, tmp_path / "b", chosen, "n1", boot=2, config=two, cluster_secret=SECRET, go=False
            ) as second:  # fmt: skip
                assert await second.tokens.custody.answers("p/a") == {"answers": [], "silent": []}
                # Whatever else is deleted there.
                shard = second.queues.catalog.shard_of(QUEUE, "a")
                other = next(
                    name
                    for name in map(str, range(1000))
                    if second.queues.catalog.shard_of(QUEUE, name) == shard
                )
                for number in range(3):
                    await second.tokens.put(f"p/{other}", new | {"refresh_token": f"r{number}"})
                await second.tokens.delete(f"p/{other}")
                assert await second.tokens.custody.answers("p/a") == {"answers": [], "silent": []}
            first.go()
            await harness.eventually(lambda: first.tokens.metrics()["journal_unreadable"] == 0)
            await journal_of(first.tokens).flush()
        assert b"raw" not in (tmp_path / "a" / "tokens.journal").read_bytes()


async def test_an_answer_stays_while_its_account_does(valkey: Any, tmp_path: Path) -> None:
    """
    A new consent leaves it, who put it may have copied the wrong token; so does a store that has
    lost its accounts.
    """
    async with scripted_provider() as endpoint:
        endpoint.faults.append(page)
        chosen = harness.provider(endpoint.url, rotation="single_use")
        async with harness.node(valkey, tmp_path, chosen, confirm_s=SOON_S) as side:
            await side.tokens.put("p/a", {"refresh_token": "a.0"})
            await in_state(side, "lost_rotation")
            for number in range(2):
                await side.tokens.put(
                    "p/a", {"refresh_token": f"n{number}", "access_token": "x", "expires_in": 3600}
                )
            unreadable = side.tokens.custody.unreadable
            await unreadable.drop_former()
            (answer,) = (await side.tokens.custody.answers("p/a"))["answers"]
            assert (answer["grant"], answer["current"]) == (1, False)
            valkey.client.delete(*valkey.client.keys("{t:*"))
            await unreadable.drop_former()
            assert (await side.tokens.custody.answers("p/a"))["answers"] == []
            assert side.tokens.metrics()["journal_unreadable"] == 1


async def test_of_one_account_the_newest_alone_are_shown(tmp_path: Path) -> None:
    class Sealed:
        def wrapped_key(self, record: bytes) -> tuple[int, bytes]:
            return 7, b"wrapped " + record

        def holds(self, _record: bytes) -> bool:
            return True

    journal = Journal(tmp_path / "j")
    journal.open()
    for number in range(SHOWN_MAX + 2):
        await journal.add_raw("q", "a", 1, number, number, b"%d" % number, (7, b"wrapped"))
        await journal.add_raw("q", "b", 1, number, number, b"of another", (7, b"wrapped"))
    vault: Any = Sealed()
    found = kept_of(journal, vault, "q", "a")
    assert [one.raw.generation for one in found] == list(range(2, SHOWN_MAX + 2))
    assert (found[0].key_id, found[0].key) == (7, b"wrapped 2")
    await journal.close()
