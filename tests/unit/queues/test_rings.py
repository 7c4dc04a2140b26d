"""A durable call is freed by its reference count, not by the collector of rings."""

from __future__ import annotations

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import pytest

from tidewarden.errors import StoreDown
from tidewarden.queue.shards.batch import Batch, BatchCall, SingleCall
from tidewarden.queue.shards.reply_durability import DurabilityGate
from tidewarden.store.durability.fsync_commit import FsyncReply, FsyncWindow


class Caller:
    def done(self) -> bool:
        return False

    def set_result(self, _: Any, /) -> None: ...

    def set_exception(self, _: BaseException, /) -> None: ...


class Commit:
    answer: Any = None

    def ground(self) -> Any:
        return SimpleNamespace(sent_by=None)

    def add(self, _ground: Any, answer: Any) -> None:
        self.answer = answer


class Shard:
    def __getattr__(self, _: str) -> Any:
        return lambda *_, **__: None


@pytest.mark.parametrize("kind", ["batch", "single"])
@pytest.mark.parametrize("end", ["confirmed", "lost"])
def test_an_answered_call_is_freed_by_its_reference_count(kind: str, end: str) -> None:
    gate, commit, shard = DurabilityGate(), Commit(), Shard()
    gate.commit = commit  # type: ignore[assignment]
    caller = Caller()
    gone = weakref.ref(caller)
    call: Any
    if kind == "batch":
        batch = Batch("queue.put")
        batch.receivers.append(caller)
        call = BatchCall(shard, "queue.put", [], [batch])  # type: ignore[arg-type]
        del batch
    else:
        call = SingleCall(shard, caller, item=False)  # type: ignore[arg-type]
        shard.__dict__["refused_alone"] = lambda *_, **__: None
    call.pending = gate.pending("queue", call)
    gc.disable()
    try:
        if end == "confirmed":
            call.set_result((0, 0, 0, [b"1"]))
            commit.answer.confirmed()
            commit.answer = None
        else:
            call.set_exception(StoreDown("lost"))
        del call, caller
        assert gone() is None
    finally:
        gc.enable()


async def test_a_window_of_an_embedded_store_frees_its_replies() -> None:
    sent: list[Any] = []
    link = SimpleNamespace(send=lambda _packed, receiver: sent.append(receiver))
    window: Any = FsyncWindow(Commit(), link, "k", SimpleNamespace())  # type: ignore[arg-type]
    caller = Caller()
    gone = weakref.ref(caller)
    reply: Any = FsyncReply(window, caller)
    window.close()
    gc.disable()
    try:
        before, synced, after = sent[0], sent[1], sent[-1]
        before.set_result(b"1"), synced.set_result(b"OK"), reply.set_result(b"x")
        after.set_result(b"1")
        await asyncio.sleep(0)
        sent.clear()
        del before, synced, after, reply, window, caller
        await asyncio.sleep(0)
        assert gone() is None
    finally:
        gc.enable()
