"""One bit of a journal's first record is flipped, behind which answers wait to be stored."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given

SLOW_S = 5.0
WAITING = 10
MAGIC_BYTES, HEAD_BYTES = 6, 8


class JournalFlipped(Scenario):
    """Nodes die with answers that no store has; the first record of each journal is damaged."""

    rule = Rule(
        "a journal's damage costs the damaged record alone",
        (
            (
                "tokens/journal/journal_records.py",
                "begin, at = at, _next_frame(raw, at + 1)",
                "begin, at = at, len(raw)",
            ),
        ),
    )
    factor = 5.0
    fleet = 2000
    life_s = 600.0
    margin_s = 200.0
    crowd = 1.0
    settings = given(level_share=0.0)  # Many answers are under way at one moment.
    quick = given(fleet=300, life_s=300.0, margin_s=100.0)
    waiting = 0
    damaged = 0

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | float | None:
        return SLOW_S

    async def play(self, stage: Stage) -> None:
        cluster, book = stage.cluster, stage.book
        nodes = await cluster.node_pids()
        await stage.until(lambda: book.open >= 2 * WAITING, self.life_s)
        stage.clock.run_at(1.0)  # How long nodes take to start is this machine's matter.
        stores = cluster.pids("valkey")
        for pid in stores:
            os.kill(pid, signal.SIGSTOP)
        try:
            self.waiting = book.open
            await stage.until(lambda: book.open == 0, 3 * SLOW_S)
            await stage.clock.sleep(2.0)  # The nodes have written what came.
            for pid in nodes:
                os.kill(pid, signal.SIGKILL)
            self.damaged = sum(map(_flip, cluster.journals()))
        finally:
            for pid in stores:
                os.kill(pid, signal.SIGCONT)
        asked = len(book.asked)
        await stage.until(lambda: len(book.asked) > asked, self.margin_s)
        stage.clock.run_at(self.factor)
        await stage.clock.sleep(1.5 * self.life_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        return [
            Check("answers that no store had", self.waiting, WAITING, least=True),
            Check("journals damaged", self.damaged, len(stage.cluster.ports), least=True),
            # The damaged record may be one of them.
            Check("grants lost", len(stage.book.revoked_for_reuse), self.damaged),
        ]


def _flip(journal: Path) -> bool:
    """Flip a bit within the first record; False: there is none."""
    raw = bytearray(journal.read_bytes())
    at = MAGIC_BYTES + HEAD_BYTES + 2
    if len(raw) <= at:
        return False
    raw[at] ^= 1
    journal.write_bytes(raw)
    return True
