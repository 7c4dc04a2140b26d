"""No node can write its journal for a while: what is answered then could be lost with the node."""

from __future__ import annotations

import subprocess

from benchmarks.connections import Broken

from .provider import Book, Grant, Reply
from .scenario import Check, Figures, Rule, Scenario, Stage, given

METRIC = "tidewarden_tokens_journal_writable 0"


class JournalBroken(Scenario):
    """The three journals may not be changed for a minute (chattr +i), a margin being longer."""

    rule = Rule(
        "a journal that cannot be written is told of",
        (
            (
                "tokens/refresh/pool.py",
                'self.limits.block("" if writable else self._journal.fault)',
                'self.limits.block("")',
            ),
        ),
    )
    factor = 5.0
    fleet = 1000
    life_s = 300.0
    margin_s = 100.0
    broken_s = 60.0
    quick = given(fleet=300, life_s=200.0, margin_s=80.0)
    story = metrics = ""
    told_s = 0.0

    def reply(self, book: Book, grant: Grant, now: float) -> Reply | None:
        return None

    async def play(self, stage: Stage) -> None:
        await stage.clock.sleep(self.life_s / 2)
        began = stage.mark("broken")
        _chattr(stage, "+i")
        try:
            self.told_s = await stage.until_told("provider.silent", self.broken_s)
            self.story = str(await stage.cluster.say("T.WHY", "shop"))
            self.metrics = await stage.cluster.metrics()
            await stage.clock.sleep(max(0.0, began + self.broken_s - stage.clock.now_s()))
        finally:
            stage.mark("mended")
            _chattr(stage, "-i")
        await stage.clock.sleep(self.life_s)

    def judge(self, stage: Stage, figures: Figures) -> list[Check]:
        book, marks = stage.book, stage.marks
        asked = book.since(marks["broken"] + 5, marks["mended"])
        return [
            Check("s until it is told", self.told_s, 15),
            Check("told what is so", float("is not writable" in self.story), 1, least=True),
            Check("shown at /metrics", float(METRIC in self.metrics), 1, least=True),
            Check("asked while no answer could be kept", len(asked), 0),
            Check("grants revoked for the reuse of a token", len(book.revoked_for_reuse), 0),
        ]


def _chattr(stage: Stage, flag: str) -> None:
    paths = [str(path) for path in stage.cluster.journals()]
    done = subprocess.run(["chattr", flag, *paths], capture_output=True, text=True, check=False)
    if done.returncode or not paths:
        raise Broken(f"chattr {flag} of {len(paths)} journals: {done.stderr.strip()}")
