"""The journal: what was appended is there after any crash, at whatever byte the writing stopped."""

from __future__ import annotations

import asyncio
import logging
import os
import struct
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from support.inspect import committing_of, thread_of

from tidewarden.errors import Internal
from tidewarden.tokens.journal import journal as journal_module
from tidewarden.tokens.journal.journal import Journal
from tidewarden.tokens.journal.journal_records import JournalAnswer, frame, read_records

KEY = (7, b"wrapped")


def opened(path: Path) -> Journal:
    journal = Journal(path)
    journal.open()
    return journal


async def add(
    journal: Journal, account: str, generation: int = 1, row: bytes = b"row"
) -> JournalAnswer:
    return await journal.add_answer("q", account, 1, generation, row, (10, 20), KEY)


async def test_an_answer_is_there_after_a_restart_until_it_is_stored(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    answer = await add(journal, "a", row=bytes(range(256)))
    await add(journal, "b")
    again = opened(tmp_path / "j")  # As after a kill: nothing was closed.
    assert [found.account for found in again.pending()] == ["a", "b"]
    assert again.find("q", "a", 1, 1) == answer
    assert again.find("q", "a", 1, 2) is None
    assert again.keys() == {7: b"wrapped"}
    again.stored(answer)
    await again.close()
    assert [found.account for found in opened(tmp_path / "j").pending()] == ["b"]


@pytest.mark.thorough
async def test_a_crash_at_every_byte_keeps_every_whole_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(tmp_path / "j")
    ends = []
    for number in range(3):
        await add(journal, f"a{number}", row=b"x" * number)
        ends.append((tmp_path / "j").stat().st_size)
    raw = (tmp_path / "j").read_bytes()
    for length in range(len(raw) + 1):
        whole = sum(end <= length for end in ends)
        torn = tmp_path / "torn"
        torn.write_bytes(raw[:length])
        caplog.clear()
        again = opened(torn)
        assert [answer.account for answer in again.pending()] == [f"a{i}" for i in range(whole)], (
            length
        )
        loud = any(record.levelno == logging.ERROR for record in caplog.records)
        assert loud == (again.torn_bytes > 0)
        await add(again, "after")
        assert [answer.account for answer in opened(torn).pending()][-1] == "after"


async def test_a_damaged_record_is_set_aside_and_told_and_costs_no_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    journal = opened(tmp_path / "j")
    await add(journal, "a")
    begin = (tmp_path / "j").stat().st_size
    await add(journal, "b")
    end = (tmp_path / "j").stat().st_size
    await add(journal, "c")
    raw = bytearray((tmp_path / "j").read_bytes())
    raw[begin + 12] ^= 1
    (tmp_path / "j").write_bytes(raw)
    again = opened(tmp_path / "j")
    assert [answer.account for answer in again.pending()] == ["a", "c"]
    assert (tmp_path / "j.torn").read_bytes() == raw[begin:end]
    assert (again.damaged_bytes, again.torn_bytes) == (end - begin, 0)
    assert f"{end - begin} bytes in 1 places, the first at {begin}, are damaged" in caplog.text


async def test_records_of_another_version_outlive_this_one(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    await add(journal, "a")
    body = msgspec.msgpack.encode(["later", 7, b"x" * 100_000])
    foreign = struct.pack(">II", len(body), zlib.crc32(body)) + body
    with (tmp_path / "j").open("ab") as file:
        file.write(foreign)
    again = opened(tmp_path / "j")
    again.stored(again.pending()[0])
    await again.close()
    await opened(tmp_path / "j").close()
    assert foreign in (tmp_path / "j").read_bytes()
    assert again.torn_bytes == 0


def test_a_journal_whose_first_bytes_are_damaged_is_one_still(tmp_path: Path) -> None:
    record = JournalAnswer(1, "q", "a", 1, 1, b"row", 10, 20)
    (tmp_path / "j").write_bytes(b"TWTJ?\n" + frame(record))
    assert opened(tmp_path / "j").pending() == [record]


async def test_those_that_come_together_share_a_sync(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path / "j")
    syncs = []
    real = os.fdatasync
    monkeypatch.setattr(journal_module.os, "fdatasync", lambda fd: (syncs.append(fd), real(fd)))
    await asyncio.gather(*(add(journal, f"a{number}") for number in range(200)))
    assert 1 <= len(syncs) <= 3
    assert len(opened(tmp_path / "j").pending()) == 200


def test_a_new_file_is_whole_on_disk_before_it_takes_its_name_and_that_before_it_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, replace, done = os.fsync, os.replace, list[str]()

    def synced(fd: int) -> None:
        done.append(f"sync {Path(f'/proc/self/fd/{fd}').readlink()}")
        fsync(fd)

    def replaced(source: Path, target: Path) -> None:
        done.append(f"rename {source}")
        replace(source, target)

    monkeypatch.setattr(journal_module.os, "fsync", synced)
    monkeypatch.setattr(journal_module.os, "replace", replaced)
    opened(tmp_path / "j")
    assert done == [f"sync {tmp_path}/j.new", f"rename {tmp_path}/j.new", f"sync {tmp_path}"]


@pytest.mark.parametrize("before", ["answer", "raw"])
async def test_what_comes_after_a_restart_has_numbers_of_its_own(
    tmp_path: Path, before: str
) -> None:
    journal = opened(tmp_path / "j")
    if before == "raw":
        await journal.add_raw("q", "a", 1, 1, 1000, b"sealed", KEY)
    else:
        await add(journal, "a")
    again = opened(tmp_path / "j")
    again.stored(await add(again, "b"))
    await again.close()
    last = opened(tmp_path / "j")
    assert [kept.account for kept in (*last.pending(), *last.raws())] == ["a"]


async def test_the_file_begins_anew_when_all_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "REWRITE_BYTES", 10_000)
    journal = opened(tmp_path / "j")
    kept = await add(journal, "kept")
    for number in range(100):
        journal.stored(await add(journal, f"a{number}", row=b"x" * 1000))
    await journal.flush()
    assert (tmp_path / "j").stat().st_size < 12_000
    assert kept in read_records((tmp_path / "j").read_bytes()).records
    journal.stored(kept)
    await journal.close()
    assert opened(tmp_path / "j").pending() == []


async def test_a_full_disk_is_told_and_healed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path / "j")
    await add(journal, "a")

    def full(*_args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(journal_module.os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            await add(journal, "b")
        assert journal.fault
        await journal.heal()
        assert journal.fault
        with pytest.raises(OSError, match=rf"{tmp_path}/j: No space left"):
            opened(tmp_path / "j")
    assert journal.find("q", "b", 1, 1) is not None  # In memory it is whole.
    await journal.heal()
    assert not journal.fault
    assert [answer.account for answer in opened(tmp_path / "j").pending()] == ["a", "b"]


async def test_a_write_that_stopped_half_way_damages_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path / "j")
    await add(journal, "a")
    real = os.write

    def half(fd: int, data: bytes) -> int:
        real(fd, bytes(data)[: len(data) // 2])
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(journal_module.os, "write", half)
        with pytest.raises(OSError, match="Input/output"):
            await add(journal, "b")
    await add(journal, "c")
    assert [answer.account for answer in opened(tmp_path / "j").pending()] == ["a", "b", "c"]


async def test_unreadable_answers_are_kept_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_module, "RAWS_MAX", 3)
    journal = opened(tmp_path / "j")
    for number in range(5):
        await journal.add_raw("q", f"a{number}", 1, 1, 1000 + number, b"sealed", KEY)
    assert [raw.account for raw in opened(tmp_path / "j").raws()] == ["a2", "a3", "a4"]


async def test_unreadable_answers_of_one_client_push_out_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider that shows all its accounts a page of HTML; another's one answer has a token."""
    monkeypatch.setattr(journal_module, "RAWS_MAX", 3)
    journal = opened(tmp_path / "j")
    await journal.add_raw("other", "b", 1, 1, 1000, b"sealed", KEY)
    for number in range(5):
        await journal.add_raw("q", f"a{number}", 1, 1, 1001 + number, b"sealed", KEY)
    for found in (journal, opened(tmp_path / "j")):
        assert [raw.account for raw in found.raws()] == ["b", "a3", "a4"]


async def test_of_many_to_one_refresh_token_the_first_are_kept_and_the_newest(
    tmp_path: Path,
) -> None:
    journal = opened(tmp_path / "j")
    for number in range(9):
        await journal.add_raw("q", "a", 1, 1, number, b"sealed", KEY)
        await journal.add_raw("q", "a", 1, 2 + number, 100, b"to another token", KEY)
    for found in (journal, opened(tmp_path / "j")):
        assert [raw.unix_ms for raw in found.raws() if raw.generation == 1] == [0, 1, 2, 8]
        assert len(found.raws()) == 13


async def test_what_is_kept_for_long_is_not_written_again_with_each_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """256 unreadable pages of 64 KiB are more than the file may have, and stay."""
    monkeypatch.setattr(journal_module, "REWRITE_BYTES", 10_000)
    journal = opened(tmp_path / "j")
    written: list[int] = []
    for name in ("_write", "_write_anew"):
        write = getattr(journal, name)

        def counted(data: bytes, write: Callable[[bytes], None] = write) -> None:
            written.append(len(data))
            write(data)

        monkeypatch.setattr(journal, name, counted)
    for number in range(6):
        await journal.add_raw("q", f"a{number}", 1, 1, 0, bytes(5000), KEY)
    assert sum(written) < 120_000  # 30,000 of pages; some of it twice
    written.clear()
    for _ in range(100):
        journal.stored(await add(journal, "b", row=bytes(100)))
        await journal.flush()
    assert sum(written) < 100_000
    written.clear()
    await journal.flush()  # Nothing waits: nothing is written.
    assert written == []
    await journal.close()
    assert len(opened(tmp_path / "j").raws()) == 6


async def test_another_file_is_not_taken_for_a_journal(tmp_path: Path) -> None:
    (tmp_path / "j").write_bytes(b"something else entirely")
    with pytest.raises(Internal, match="is not a journal of tokens"):
        opened(tmp_path / "j")
    assert (tmp_path / "j").read_bytes() == b"something else entirely"


async def test_an_answer_is_not_left_waiting_by_whoever_was_to_write_it_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path / "j")
    disk, real = threading.Event(), os.fdatasync

    def slow(descriptor: int) -> None:
        disk.wait(60)
        real(descriptor)

    monkeypatch.setattr(journal_module.os, "fdatasync", slow)
    adding = asyncio.create_task(add(journal, "a"))
    flushing = asyncio.create_task(journal.flush())  # takes the answer along
    while not committing_of(journal).locked():
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    flushing.cancel()
    await asyncio.gather(flushing, return_exceptions=True)
    closing = asyncio.create_task(journal.close())
    await asyncio.sleep(0.01)
    disk.set()
    async with asyncio.timeout(5):
        assert (await adding).account == "a"
        await closing
    assert [answer.account for answer in opened(tmp_path / "j").pending()] == ["a"]


async def test_what_a_thread_that_has_ended_does_not_write_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever waits for its answer to be written must not wait for ever, whatever went wrong."""
    journal = opened(tmp_path / "j")
    thread_of(journal).shutdown()
    async with asyncio.timeout(20):
        with pytest.raises(RuntimeError, match="shutdown"):
            await add(journal, "a")
    assert journal.fault


async def test_what_was_given_for_a_consent_is_there_until_it_is_stored(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    answer = await add(journal, "a")
    first = await journal.add_consent("q", "a", (0, 3), b"sealed-1", ("s:1", "l:1"), KEY)
    second = await journal.add_consent("q", "b", (7, 3), b"sealed-2", ("s:2", "l:2"), KEY)
    assert len({answer.number, first.number, second.number}) == 3
    assert "sealed" not in repr(first)
    assert [(one.before, one.floor) for one in (first, second)] == [(0, 3), (7, 3)]
    again = opened(tmp_path / "j")  # As after a kill: nothing was closed.
    assert again.consents() == [first, second]
    assert again.pending() == [answer]
    again.stored(first)
    assert (again.waits(first), again.waits(second)) == (False, True)
    await again.close()
    last = opened(tmp_path / "j")
    assert last.consents() == [second]
    resealed = msgspec.structs.replace(second, body=b"sealed-3")
    await last.replace(last.pending(), [], last.keys(), [resealed, first])
    await last.close()
    assert opened(tmp_path / "j").consents() == [resealed]


async def test_a_consent_that_is_not_written_is_in_memory(tmp_path: Path) -> None:
    journal = opened(tmp_path / "j")
    (tmp_path / "j.new").mkdir()
    journal.fault = "a write failed"  # so that the file begins anew, which the folder forbids
    with pytest.raises(OSError, match="j"):
        await journal.add_consent("q", "a", (0, 0), b"sealed", ("s", "l"), KEY)
    (found,) = journal.consents()
    assert found.claim == ("s", "l")
