"""Lists of accounts, page by page."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.tokens import harness

from tidewarden.config.rights import Rights
from tidewarden.errors import BadArg, Internal, NotFound
from tidewarden.tokens.accounts.account_record import AccountRow
from tidewarden.tokens.accounts.account_store import Entry
from tidewarden.tokens.verbs.listing import LOOKED_MAX, PROVIDERS_MAX, Listing


async def walk(tokens: Any, *counts: int, **options: Any) -> list[str]:
    """Every account of a list whose pages have at most so many, by turns."""
    names, after = [], ""
    for count in itertools.cycle(counts or (100,)):
        page, after = await tokens.list(after=after, count=count, **options)
        names += [entry["account"] for entry in page]
        assert len(page) <= count
        if not after:
            break
    return names


@pytest.mark.thorough
@pytest.mark.parametrize("clustered", [False, True])
async def test_every_account_is_met_on_pages_of_the_asked_size(
    valkey: Any, tmp_path: Path, clustered: bool
) -> None:
    chosen = harness.provider("http://127.0.0.1:9/")
    async with harness.node(valkey, tmp_path, chosen, go=False, clustered=clustered) as side:
        await asyncio.gather(
            *(side.tokens.put(f"p/a{n}", {"refresh_token": f"r{n}"}) for n in range(700))
        )
        expected = sorted(f"p/a{n}" for n in range(700))
        for counts in ((7,), (100,), (1000,), (3, 300, 30)):
            assert sorted(await walk(side.tokens, *counts)) == expected


async def test_a_client_has_one_shard_and_one_that_was_made_with_more_keeps_them(
    valkey: Any, tmp_path: Path
) -> None:
    chosen = harness.provider("http://127.0.0.1:9/")
    for clustered in (True, False):
        async with harness.node(valkey, tmp_path, chosen, go=False, clustered=clustered) as side:
            assert await side.queues.catalog.shard_count("_tokens:p:c0") == 16
            await side.tokens.put(f"p/{clustered}", {"refresh_token": f"r{clustered}"})
    async with harness.node(
        valkey, tmp_path, chosen, go=False, more=[replace(chosen, name="new")]
    ) as side:
        assert await side.queues.catalog.shard_count("_tokens:new:c0") == 1
        assert sorted(await walk(side.tokens)) == ["p/False", "p/True"]


@pytest.mark.parametrize("state", ["", "expiring"])
async def test_who_may_see_some_accounts_meets_each_of_them_and_hears_of_no_other(
    valkey: Any, tmp_path: Path, state: str
) -> None:
    chosen, other = (harness.provider("http://127.0.0.1:9/"), harness.provider("http://x/"))
    other = replace(other, name="q", client_id="c1")
    seen = Rights(("token:read:p/mine*", "token:write:q/a1")).accounts("token:read", "token:write")
    async with harness.node(valkey, tmp_path, chosen, go=False, more=[other]) as side:
        names = [f"p/{whose}{n}" for whose in ("mine", "other") for n in range(40)]
        names += [f"q/a{n}" for n in range(20)]
        await asyncio.gather(
            *(side.tokens.put(name, {"refresh_token": f"r {name}"}) for name in names)
        )
        expected = {*(f"p/mine{n}" for n in range(40)), "q/a1"}
        for count in (1, 3, 100):
            met, after = [], ""
            while True:
                page, after = await side.tokens.list("", state, count, after, seen)
                met += [entry["account"] for entry in page]
                assert len(page) <= count
                assert "other" not in after
                if not after:
                    break
            assert (len(met), set(met)) == (41, expected), count
        nobody = Rights(("token:read:z",)).accounts("token:read")
        assert await side.tokens.list(seen=nobody) == ([], "")
        key = (b"k" * 32, b"i" * 16, 1)
        lines, after, unreadable = await side.tokens.custody.export(key, count=1000, exported=seen)
        while after:
            more, after, _ = await side.tokens.custody.export(
                (*key[:2], len(lines) + 1), after=after, count=1000, exported=seen
            )
            lines += more
        assert (len(lines), unreadable) == (41, [])
        written = Rights(("token:write:q",)).accounts("token:write")
        results = await side.tokens.custody.import_sealed(key, lines, written)
        assert results.count(0) == 1
        assert sum("needs the right token:write:p/mine" in str(one) for one in results) == 40


@pytest.mark.parametrize("state", ["", "expiring"])
async def test_who_deletes_what_a_page_had_meets_all_the_others(still: Any, state: str) -> None:
    async with still as side:
        await asyncio.gather(
            *(side.tokens.put(f"p/a:{n}", {"refresh_token": f"r{n}"}) for n in range(48))
        )
        names, after = [], ""
        while True:
            page, after = await side.tokens.list(state=state, count=3, after=after)
            for entry in page:
                names.append(entry["account"])
                assert await side.tokens.delete(entry["account"])
            if not after:
                break
        assert sorted(names) == sorted(f"p/a:{n}" for n in range(48))


async def test_by_state(still: Any) -> None:
    async with still as side:
        await asyncio.gather(
            *(side.tokens.put(f"p/new{n}", {"refresh_token": f"r{n}"}) for n in range(60))
        )
        fresh = {"access_token": "a", "expires_in": 3600}
        await asyncio.gather(
            *(side.tokens.put(f"p/ok{n}", fresh | {"refresh_token": f"ok{n}"}) for n in range(60))
        )
        late = {"refresh_token": "late", "access_token": "a", "expires_at_ms": 1000}
        await side.tokens.put("p/late", late)
        for state, names in (
            ("fresh", 60),
            ("expiring", 60),
            ("late", 1),
            ("failing", 0),
            ("stopped", 0),
            ("dead", 0),
        ):
            found = await walk(side.tokens, 25, state=state)
            assert len(found) == names, state
        page, after = await side.tokens.list(provider="p", state="late")
        assert after == ""
        assert page[0] | {"stored_ms": 0, "due_ms": 0, "next_ms": 0} == {
            "account": "p/late", "provider": "p", "state": "late", "grant": 1, "generation": 1, "stored_ms": 0,
            "expires_at_ms": 1000, "due_ms": 0, "tries": 0, "error": "", "message": "", "next_ms": 0,
            "since_ms": 1000, "advice": "", "consent_expires_ms": 0, "parameters": {},
        }  # fmt: skip


async def test_wrong_options_are_told(still: Any) -> None:
    async with still as side:
        for options, says in (
            (
                {"state": "lost"},
                "STATE is 'lost'; allowed are fresh, expiring, late, failing, stopped, dead",
            ),
            ({"count": 0}, "COUNT is 0; allowed is 1 to 1000"),
            ({"count": 1001}, "COUNT is 1001"),
            ({"after": "nonsense"}, "AFTER is 'nonsense', which is no cursor of this list"),
            ({"after": "p:0:0:0:0:a"}, "which is no cursor of this list"),
            ({"after": "p:1:0:0:0:"}, "which is no cursor of this list"),
            ({"after": "p:0:x:0:0:"}, "which is no cursor of this list"),
            ({"after": f"p:0:{'9' * 5000}:0:0:"}, "which is no cursor of this list"),
            ({"after": f"p:0:{1 << 64}:0:0:"}, "which is no cursor of this list"),
        ):
            with pytest.raises(BadArg, match=says):
                await side.tokens.list(**options)
        with pytest.raises(NotFound, match="there is no provider 'q'"):
            await side.tokens.list(provider="q")


async def test_one_page_looks_at_so_many_accounts_however_few_are_in_that_state() -> None:
    class Many:
        """A shard without end, of whose accounts every hundredth is late."""

        asked = 0

        async def shards(self, _queue: str) -> int:
            return 2

        async def first_pages(self, _queue: str, _count: int, **_options: Any) -> Any:
            return [(1, 100, [])] * 2

        async def page(
            self, _queue: str, _shard: int, scan: int, count: int, **_options: Any
        ) -> Any:
            self.asked += 1
            rows = (
                (number, AccountRow(1, 1, 0, 50 if number % 100 == 0 else 900, 800, b"", b""))
                for number in range(scan, scan + count)
            )
            return scan + count, 100, [Entry(f"a{number:09}", row, None) for number, row in rows]

        async def script(self, *_: Any) -> Any:
            return [0, 0, 0, 100, 0, b""]

    many: Any = Many()
    listing = Listing(many, {"p": "q"}, {"p": harness.provider("http://127.0.0.1:9/")})
    found, after = await listing.page(["p"], "late", 20, "")
    assert ([entry["account"] for entry in found], after) == (
        ["p/a000000000", "p/a000000100"],
        "p:0:200:0:0:",
    )
    assert many.asked == LOOKED_MAX
    found, after = await listing.page(["p"], "late", 1, after)
    assert ([entry["account"] for entry in found], after) == (["p/a000000200"], "p:0:210:0:0:")
    found, after = await listing.page(["p"], "fresh", 20, after)
    assert (len(found), after) == (20, "p:0:230:250:20:")


async def test_of_many_small_providers_each_is_asked_once() -> None:
    class Small:
        """Ten providers in a hundred have an account, in one of their shards."""

        asked = statuses = 0

        async def shards(self, _queue: str) -> int:
            return 4

        async def first_pages(self, queue: str, _count: int, **_options: Any) -> Any:
            self.asked += 1
            entries = (
                [Entry("a", AccountRow(1, 1, 0, 50, 40, b"", b""), None)]
                if queue.endswith("7")
                else []
            )
            return [(0, 100, entries if shard == 3 else []) for shard in range(4)]

        async def page(self, *_: Any, **_options: Any) -> Any:
            raise AssertionError("no shard has more")

        async def script(self, *_: Any) -> Any:
            self.statuses += 1
            return [0, 0, 0, 100, 0, b""]

    small: Any = Small()
    names = [f"p{number:03}" for number in range(999)]
    provider = harness.provider("http://127.0.0.1:9/")
    providers = {name: replace(provider, name=name) for name in names}
    listing = Listing(small, {name: f"q{name}" for name in names}, providers)
    found, after = await listing.page(names, "", 1000, "")
    assert ([entry["account"] for entry in found], after) == (
        [f"p{n:02}7/a" for n in range(100)][:100],
        "",
    )
    assert (small.asked, small.statuses) == (
        999,
        100,
    ), "how it stands matters to those alone that have accounts"
    # With a state that nobody is in, a page ends in time, and the next goes on where it did.
    small.asked, after, pages = 0, "", 0
    while pages == 0 or after:
        before = small.asked
        found, after = await listing.page(names, "dead", 100, after)
        assert found == []
        assert small.asked - before <= PROVIDERS_MAX
        pages += 1
    assert (small.asked, pages) == (999, 4)


async def test_a_provider_that_cannot_be_read_fails_the_pages_that_reach_it() -> None:
    class Spoilt:
        """Three providers of nine accounts, which are read together; the last one's are lost."""

        asked = 0

        async def shards(self, _queue: str) -> int:
            return 1

        async def first_pages(self, queue: str, _count: int, **_options: Any) -> Any:
            self.asked += 1
            if queue == "qc":
                raise Internal("its record has format 99")
            row = AccountRow(1, 1, 0, 50, 40, b"", b"")
            return [(0, 100, [Entry(f"a{number}", row, None) for number in range(9)])]

        async def script(self, *_: Any) -> Any:
            return [0, 0, 0, 100, 0, b""]

    spoilt: Any = Spoilt()
    provider = harness.provider("http://127.0.0.1:9/")
    providers = {name: replace(provider, name=name) for name in "abc"}
    listing = Listing(spoilt, {name: f"q{name}" for name in "abc"}, providers)
    found, after = await listing.page(list("abc"), "", 17, "")
    assert [entry["account"] for entry in found] == [
        *(f"a/a{number}" for number in range(9)),
        *(f"b/a{number}" for number in range(8)),
    ]
    assert spoilt.asked == 3, "the third was read ahead"
    with pytest.raises(Internal, match="format 99"):
        await listing.page(list("abc"), "", 17, after)


async def test_a_queue_that_is_cut_anew_while_a_page_is_read_is_read_as_it_is_now() -> None:
    class Recut:
        """It had four shards, and has one when the beginnings of the four have been read."""

        def __init__(self) -> None:
            row = AccountRow(1, 1, 0, 50, 40, b"", b"")
            self.entries = [Entry(f"a{number}", row, None) for number in range(4)]

        async def shards(self, _queue: str) -> int:
            return 1

        async def first_pages(self, _queue: str, _count: int, **_options: Any) -> Any:
            return [(0, 100, [entry]) for entry in self.entries]

        async def page(self, _queue: str, shard: int, scan: int, *_: Any, **_options: Any) -> Any:
            assert (shard, scan) == (0, 0)
            return 0, 100, self.entries

        async def script(self, *_: Any) -> Any:
            return [0, 0, 0, 100, 0, b""]

    recut: Any = Recut()
    listing = Listing(recut, {"p": "q"}, {"p": harness.provider("http://127.0.0.1:9/")})
    found, after = await listing.page(["p"], "", 100, "")
    assert ([entry["account"] for entry in found], after) == ([f"p/a{n}" for n in range(4)], "")
