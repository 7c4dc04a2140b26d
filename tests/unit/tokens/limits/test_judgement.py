"""
Holds, rates and quarantines, decided by evidence alone: fleets and providers played in time that is
handed in.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewarden.tokens.limits import judgement, throttle
from tidewarden.tokens.limits.answer_counts import (
    COUNTS,
    KEPT_MS,
    Bucket,
    Ended,
    Silence,
    Told,
    within,
)
from tidewarden.tokens.limits.client_record import ClientEvent, ClientRecord, parse_record
from tidewarden.tokens.limits.judgement import (
    ask_probe,
    assess,
    fold,
    release,
    set_quarantine,
)
from tidewarden.tokens.provider.token_response import Verdict

WORDS = {"client": ("invalid_client", "HTTP 401"), "erring": ("unavailable", "HTTP 500")}
STEP_MS = 250


@dataclass
class Play:
    """A record and the time; each call is one node telling."""

    record: ClientRecord = field(default_factory=ClientRecord)
    now_ms: int = 1_000_000
    events: list[str] = field(default_factory=list)

    def tell(
        self, goodput: float = 10.0, wait_ms: int = 0, short: bool = False, **counts: int
    ) -> None:
        others = sum(counts.get(name, 0) for name in ("erring", "client", "refused"))
        counts.setdefault("others", others)
        # All of them were refreshed well before, unless it is said otherwise.
        for kind in ("client", "erring"):
            counts.setdefault(f"proven_{kind}", counts.get(kind, 0))
        in_a_row: dict[Any, int] = {
            kind: counts[kind] for kind in ("client", "erring") if kind in counts
        }
        told = Told(
            "n0",
            Bucket(**counts),
            in_a_row={} if counts.get("ok") else in_a_row,
            words=dict(WORDS),
            goodput=goodput,
            wait_ms=wait_ms,
            short=short,
        )
        self.note(fold(self.record, told, self.now_ms))
        self.record = parse_record(self.record.pack())  # As the store gives it back.

    def note(self, events: list[ClientEvent]) -> None:
        self.events += [event.kind.removeprefix("provider.") for event in events]

    def run(self, seconds: float, *, apart_ms: int = STEP_MS, **counts: int) -> None:
        """So long, each quarter of a second unless it is said otherwise."""
        for _ in range(int(seconds * 1000 / apart_ms)):
            self.tell(**counts)
            self.now_ms += apart_ms


def test_a_refused_client_is_held_at_the_fifth_witness_and_one_success_opens() -> None:
    play = Play()
    play.tell(client=4)
    assert play.record.hold is None
    known = assess(play.record, "client", Bucket(), play.now_ms, 0, silent=False)
    assert known.shared  # Nobody is blamed for it even so.
    play.tell(client=1)
    assert play.record.hold is not None
    assert play.record.hold.said == "invalid_client HTTP 401 (5 of 5 accounts that were well)"
    assert play.events == ["breaker_open"]
    play.now_ms += 60_000
    play.tell(ok=1)
    assert play.record.hold is None
    play.run(throttle.CALM_MS / 1000 + 1, ok=1)
    assert play.events == ["breaker_open", "breaker_closed"]


@pytest.mark.parametrize("kind", ["client", "erring"])
@pytest.mark.parametrize("share", [0.01, 0.03, 0.2, 0.5])
def test_some_accounts_that_fail_hold_nobody(kind: str, share: float) -> None:
    play = Play()
    for n in range(700):  # longer than either of the times by which a client is judged at once
        play.tell(**{kind: int(share * 100), "ok": 100 - int(share * 100)})
        play.now_ms += 1000
        assert play.record.hold is None, n
    assert play.events == ["quarantine_begun"] * (share > 0.1)


def test_where_little_comes_those_in_a_row_count_and_it_is_told_once() -> None:
    """One account a second, and all was well until just now: a share would say so after minutes."""
    play = Play()
    for _ in range(300):
        play.tell(ok=1)
        play.now_ms += 1000
    for _ in range(20):
        play.tell(client=1)
        play.now_ms += 1000
    assert play.record.hold is not None
    assert play.record.hold.since_ms - 1_000_000 == 304_000
    assert play.events == ["breaker_open"]


@pytest.mark.parametrize("kind", ["client", "erring"])
def test_a_hold_for_accounts_that_never_were_well_is_told_once_its_probe_has_failed(
    kind: str,
) -> None:
    """Sixty that are imported at once with a wrong word of their own come in a row."""
    play = Play()
    play.run(60, ok=2)
    play.now_ms += throttle.HOLD_WINDOWS_MS[-1]
    play.tell(**{kind: 12, f"proven_{kind}": 0})
    assert play.record.hold is not None  # Nothing else shows how the others fare.
    assert play.events == []
    fold(play.record, Told("n0", probe=True), play.now_ms + 2_000)
    assert play.record.hold is None
    play.now_ms += throttle.HOLD_WINDOWS_MS[-1]
    play.run(throttle.CALM_MS / 1000 + 1, ok=1)
    assert play.events == []
    play.now_ms += throttle.HOLD_WINDOWS_MS[-1]
    play.tell(**{kind: 30, f"proven_{kind}": 0})
    play.note(fold(play.record, Told("n0", probe=False), play.now_ms + 2_000))
    assert play.events == ["breaker_open"]
    play.note(fold(play.record, Told("n0", probe=True), play.now_ms + 4_000))
    play.now_ms += 4_000
    play.run(throttle.CALM_MS / 1000 + 1, ok=1)
    assert play.events == ["breaker_open", "breaker_closed"]


def test_one_that_was_well_among_those_that_fail_has_the_hold_told_at_once() -> None:
    play = Play()
    play.run(60, ok=2)
    play.now_ms += throttle.HOLD_WINDOWS_MS[-1]
    play.tell(client=5, proven_client=1)
    assert play.events == ["breaker_open"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "parts",
    [
        {"erring": 2, "refused": 2, "ok": 1},
        {"client": 1, "ok": 1},  # One of two servers does not know the new secret.
        {"erring": 1, "ok": 1},
    ],
)
def test_a_provider_that_fails_by_halves_has_no_holds_by_chance(
    parts: dict[str, int], seed: int
) -> None:
    """Each would stop all accounts for seconds, and be told as an incident of its own."""
    play, dice = Play(), Random(seed)
    for _ in range(2700):
        (kind,) = dice.choices(list(parts), list(parts.values()))
        play.tell(**{kind: 1})
        play.now_ms += 333
    # Dozens without it. The first may come before it is known how such a provider is usually.
    assert play.events.count("breaker_open") <= 3
    play.tell(**{next(iter(parts)): 30})
    assert play.record.hold is not None


@pytest.mark.parametrize("kind", ["client", "erring"])
def test_a_few_grants_that_are_refused_hide_no_outage(kind: str) -> None:
    play = Play()
    play.run(10, ok=25)
    play.now_ms += 4_000
    play.tell(**{kind: 18, "refused": 1, "ok": 1})
    assert play.record.hold is not None


def test_an_outage_is_seen_at_once_although_all_was_well_just_before() -> None:
    play = Play()
    play.run(120, ok=25)
    play.now_ms += 4_000
    play.tell(erring=10)
    assert play.record.hold is not None
    assert play.record.hold.kind == "erring"


def test_three_probes_fail_before_the_pause_grows_and_it_stays_short() -> None:
    play = Play()
    play.tell(client=5)
    pauses = []
    for _ in range(330):
        found = play.record.hold
        assert found is not None
        play.now_ms = max(play.now_ms, found.until_ms)
        assert throttle.claim(play.record, "n0", play.now_ms, 40_000)
        assert not throttle.claim(play.record, "n1", play.now_ms + 39_999, 40_000)
        before_ms = play.now_ms
        fold(play.record, Told("n0", probe=False), play.now_ms)
        pauses.append(found.until_ms - before_ms)
    assert pauses[:5] == [2000, 2000, 3000, 3000, 3000]
    assert max(pauses[:150]) == 3000  # Whoever mends it sees it within seconds.
    assert pauses[-1] == 30_000
    claimed_ms = play.now_ms + pauses[-1]
    assert throttle.claim(play.record, "n0", claimed_ms, 40_000)
    assert throttle.claim(play.record, "n1", claimed_ms + 40_000, 40_000)  # Its node died.
    fold(play.record, Told("n1", probe=True), claimed_ms + 40_001)
    assert play.record.hold is None


def test_a_hold_that_comes_and_goes_is_told_once() -> None:
    play = Play()
    for _ in range(100):
        play.tell(erring=12)
        play.now_ms += 3000
        fold(play.record, Told("n0", probe=True), play.now_ms)
        play.now_ms += 1000
    assert play.events == ["breaker_open"]


def test_a_probe_that_is_not_sent_makes_way() -> None:
    play = Play()
    play.tell(client=5)
    play.now_ms += 2000
    assert throttle.claim(play.record, "n0", play.now_ms, 40_000)
    fold(play.record, Told("n1", unclaim=True), play.now_ms)
    assert not throttle.claim(play.record, "n1", play.now_ms + 600, 40_000)
    fold(play.record, Told("n0", unclaim=True), play.now_ms)
    assert throttle.claim(play.record, "n1", play.now_ms + 600, 40_000)


# --- rates


def played(
    limit: float, need: float, seconds: float, *, limited_share: float = 0.0
) -> tuple[float, float]:
    """
    Goodput and the share of 429 at a provider that bears ``limit`` requests a second (0: any), and
    answers some 429 whatever comes, when ``need`` are needed: what is sent follows the rate, what
    was refused is sent again.
    """
    play, budget, wanted, due_share, granted = Play(), limit, 0.0, 0.0, 0.0
    ok_sum = limited_sum = 0
    for _ in range(int(seconds * 1000 / STEP_MS)):
        step_s = STEP_MS / 1000
        wanted += need * step_s
        rate_now = play.record.rate.per_second if play.record.rate else 300.0
        granted = min(granted + rate_now * step_s, max(1.0, rate_now))  # The token bucket's.
        sent = int(min(wanted, granted))
        granted -= sent
        budget = min(max(1.0, limit), budget + limit * step_s)
        ok = min(sent, int(budget)) if limit else sent
        budget -= ok
        due_share += ok * limited_share
        odd, due_share = int(due_share), due_share % 1
        ok -= odd
        play.tell(goodput=ok / step_s, ok=ok, limited=sent - ok, short=wanted > sent)
        wanted -= ok
        ok_sum, limited_sum = ok_sum + ok, limited_sum + sent - ok
        play.now_ms += STEP_MS
    return ok_sum / seconds, limited_sum / max(1, ok_sum + limited_sum)


@pytest.mark.parametrize(
    ("limit", "share_max"), [(5.0, 0.25), (20.0, 0.05), (100.0, 0.05), (250.0, 0.05)]
)
def test_a_true_limit_is_found_and_kept(limit: float, share_max: float) -> None:
    """
    The first crowd, before anything is known, is a good part of all requests where few are borne.
    """
    goodput, share = played(limit, 1.25 * limit, 300)
    assert goodput >= 0.9 * limit
    assert share <= share_max


@pytest.mark.parametrize("need", [5.0, 20.0, 200.0])
def test_a_few_429_slow_nobody_down(need: float) -> None:
    goodput, share = played(0, need, 300, limited_share=0.01)
    assert goodput >= 0.97 * need
    assert share <= 0.012


def test_a_rate_is_forgotten_soon_after_the_limit_is_gone() -> None:
    play = Play()
    play.tell(goodput=50, ok=5, limited=20)
    assert play.record.rate is not None
    assert play.record.rate.per_second == pytest.approx(45)
    play.run(25, ok=25)
    assert play.record.rate is None


def test_where_all_were_answered_429_the_rate_doubles_with_each_good_second() -> None:
    """Ten minutes of 429 for all show no bound; what is borne afterwards is soon known."""
    play = Play()
    play.run(60, ok=5)
    play.run(600, limited=2, short=True)
    assert play.record.rate is not None
    assert play.record.rate.per_second <= 0.3
    rates = []
    for _ in range(8):
        play.now_ms += 1000
        play.tell(ok=1, short=True)
        rates.append(play.record.rate.per_second if play.record.rate else 0)
    assert rates[-1] >= 20
    assert all(after <= 2 * before for before, after in itertools.pairwise(rates))
    play.tell(ok=3, limited=4, short=True)  # That is more than it bears: growth is careful again.
    play.now_ms += 1000
    play.tell(ok=3, limited=4, goodput=10, short=True)
    assert play.record.rate is not None
    assert not play.record.rate.doubled_ms
    assert play.record.rate.per_second <= 10


def test_a_rate_doubles_however_few_answers_come_and_whoever_tells_between() -> None:
    """At one answer in five seconds most of what nodes tell holds none."""
    play = Play()
    play.run(60, limited=2, short=True)
    assert play.record.rate is not None
    for second in range(60):
        for _ in range(3):
            play.tell(short=True)
            play.now_ms += 300
        if second % 5 == 0:
            play.tell(ok=1, short=True)
        play.now_ms += 100
        if play.record.rate is None or play.record.rate.per_second >= 20:
            break
    assert second < 50


def test_a_rate_that_fell_to_its_least_shows_no_bound() -> None:
    """Nothing was answered well since it was counted last: that is no peak to grow towards."""
    play = Play()
    play.tell(ok=30, limited=10, goodput=0.0)
    play.now_ms += 1500
    play.tell(limited=20, goodput=0.0, short=True)
    assert play.record.rate is not None
    assert play.record.rate.per_second == throttle.PER_SECOND_MIN
    for second in range(12):
        play.now_ms += 1000
        play.tell(ok=1 + second, short=True)
        if play.record.rate is None:
            break
    assert play.record.rate is None or play.record.rate.per_second >= 20


def test_all_rest_where_every_answer_says_so_and_not_before() -> None:
    play = Play()
    play.tell(ok=2, limited=20, wait_ms=30_000)
    assert play.record.rest_ms == 0
    play.now_ms += 10_000
    play.tell(limited=8, wait_ms=30_000)
    assert play.record.rest_ms == play.now_ms + 30_000
    assert play.record.hold is None  # Then all go on: nobody need probe.


def test_a_few_accounts_limits_of_a_day_do_not_rest_all_for_a_day() -> None:
    """
    At a quiet time they are all that is answered; whoever is asked after a minute shows that others
    are well.
    """
    play = Play()
    play.tell(ok=50)
    play.now_ms += 60_000
    play.tell(limited=8, wait_ms=86_400_000)
    assert play.record.rest_ms - play.now_ms == 60_000
    play.now_ms += 60_000
    play.tell(ok=1)
    play.run(20, ok=1)
    play.tell(limited=8, wait_ms=86_400_000)
    assert play.record.rest_ms <= play.now_ms
    assert play.record.rests == 0


def test_all_rest_for_as_long_as_is_named_where_it_is_said_again_and_again() -> None:
    play, rests = Play(), []
    for _ in range(7):
        play.tell(limited=8, wait_ms=1_000_000)
        rests.append((play.record.rest_ms - play.now_ms) // 1000)
        play.now_ms += 500
        play.tell(limited=8, wait_ms=1_000_000)  # Those were under way: no more is known by them.
        play.now_ms = play.record.rest_ms
    assert rests == [60, 120, 240, 480, 960, 1000, 1000]


def test_a_day_that_one_error_names_does_not_hold_all_for_a_day() -> None:
    play = Play()
    play.note(
        fold(play.record, Told("n0", Bucket(erring=10), error_wait_ms=86_400_000), play.now_ms)
    )
    found, pauses = play.record.hold, []
    assert found is not None
    for _ in range(12):
        pauses.append((found.until_ms - play.now_ms) // 1000)
        play.now_ms = found.until_ms
        fold(
            play.record,
            Told("n0", Bucket(others=1), probe=False, error_wait_ms=86_400_000),
            play.now_ms,
        )
    assert pauses == [60 << n for n in (0, *range(1, 11))] + [86_400]
    fold(play.record, Told("n0", probe=False), play.now_ms)
    assert found.until_ms - play.now_ms <= 15_000


def test_what_went_well_before_a_hold_and_is_told_late_does_not_end_it() -> None:
    play = Play()
    play.tell(erring=10)
    fold(play.record, Told("n1", Bucket(erring=1), older=Bucket(ok=20)), play.now_ms + 500)
    assert play.record.hold is not None


def test_a_hold_of_another_version_has_pauses_like_any() -> None:
    play = Play()
    play.tell(erring=10)
    assert play.record.hold is not None
    play.record.hold.kind = "of another version"
    fold(play.record, Told("n0", probe=False), play.now_ms)
    assert play.record.hold.until_ms == play.now_ms + throttle.PAUSE_MS


def test_nodes_that_are_gone_for_good_are_forgotten() -> None:
    play = Play()
    for n in range(60):
        silence = Silence(play.now_ms, play.now_ms, 0, "refused", "no connection")
        fold(play.record, Told(f"node-{n}", silence=silence, silent=True), play.now_ms)
        play.now_ms += 86_400_000
    assert len(play.record.silences) <= 8


# --- quarantine


@pytest.mark.thorough
def test_refusals_that_jump_are_noticed_and_time_alone_ends_nothing() -> None:
    play = Play()
    play.run(1800, ok=10)
    play.run(1, refused=10)
    assert play.record.quarantine is None  # A hundredth of the last ten minutes.
    play.run(900, refused=10)
    assert play.record.quarantine is not None
    usual = judgement.usual_share(play.record)
    play.run(7 * 3600, apart_ms=5000, refused=40, refused_again=20)
    assert play.record.quarantine is not None
    assert judgement.usual_share(play.record) == usual  # Nothing of it has become usual.
    play.run(30, accepted=1, ok=1)
    assert play.record.quarantine.ending_ms
    assert play.record.rouse_ms  # Whoever failed is tried now.
    assert play.events == ["quarantine_begun"]
    play.run(3590, apart_ms=5000, ok=100)
    assert play.record.quarantine is None
    assert play.events == ["quarantine_begun", "quarantine_over"]


@given(st.integers(0, 50), st.integers(0, 1000))
def test_a_part_of_a_fleet_that_is_refused_is_quarantined(refused: int, well: int) -> None:
    play = Play()
    play.tell(ok=well)
    play.now_ms += 60_000
    play.tell(refused=refused)
    share = refused / max(1, refused + well)
    expected = 0.001 * (refused + well)
    unusual = refused > expected + 4 * expected**0.5 + 2
    assert (play.record.quarantine is not None) == (unusual and share > 0.03)
    cluster = refused > expected + expected**0.5 + 1
    assert judgement.clustered(play.record, play.now_ms) == cluster


def test_what_a_slow_client_is_judged_by_is_fifty_answers() -> None:
    """Three of sixty accounts of eight hours that are refused within half a day are an incident."""
    play = Play()
    for n in range(300):
        play.tell(ok=1)
        play.now_ms += 480_000
        if n in (250, 270, 290):
            play.tell(refused=1)
    assert play.events == ["quarantine_begun"]
    assert len(play.record.buckets) < 60


def test_chance_begins_no_quarantine_where_some_refusals_are_usual() -> None:
    play = Play()
    for _ in range(30):
        play.tell(ok=99, refused=1)
        play.now_ms += 4 * 3_600_000
    play.tell(refused=4)
    assert not play.events


def test_where_nobody_was_ever_well_it_is_told_until_somebody_is() -> None:
    play = Play()
    for _ in range(6):
        assert play.record.quarantine is None
        play.tell(others=1, unproven=1)
        play.now_ms += 60_000
    assert play.record.quarantine is not None
    assert play.record.quarantine.kind == "unproven"
    play.tell(ok=1)
    assert play.record.quarantine is None
    assert play.record.rouse_ms
    assert play.events == ["quarantine_begun", "quarantine_over"]


def test_one_of_those_a_quarantine_is_for_is_asked_each_ten_seconds_from_the_first_moment() -> None:
    play = Play()
    play.tell(refused=100)
    begun_ms, asked = play.now_ms, []
    while play.now_ms < begun_ms + 24 * 3_600_000:
        if play.record.claim_sample(play.now_ms):
            asked.append((play.now_ms - begun_ms) // 1000)
            play.tell(refused_again=1)
        play.now_ms += 1000
    assert asked[:4] == [0, 10, 20, 30]
    assert 225 <= asked[-1] - asked[-2] <= 240  # More and more rarely.
    play.tell(ok=1, accepted=1)
    claims = [play.record.claim_sample(play.now_ms + second * 1000) for second in (1, 2)]
    assert claims == [False, True]  # One is well: the next show sooner whether all are.


def test_few_accounts_of_a_quarantine_are_asked_once_a_minute() -> None:
    play = Play()
    play.tell(refused=3)
    assert play.record.claim_sample(play.now_ms)
    assert not play.record.claim_sample(play.now_ms + 19_999)
    assert play.record.claim_sample(play.now_ms + 20_000)


def test_the_next_is_asked_sooner_once_more_than_a_few_are_refused() -> None:
    play = Play()
    play.tell(refused=3)
    assert play.record.claim_sample(play.now_ms)
    play.now_ms += 1_000
    play.tell(refused=100)
    assert not play.record.claim_sample(play.now_ms + 9_999)
    assert play.record.claim_sample(play.now_ms + 10_000)


def test_a_quarantine_ends_when_no_more_are_left_than_fail_anyway() -> None:
    """One of four is gone for good; the others are well again."""
    play = Play()
    play.tell(refused=4, ok=20)
    for _ in range(40):
        play.tell(refused_again=1)
    play.tell(ok=1, accepted=1)
    play.tell(refused_again=1)
    assert play.record.quarantine is not None
    assert not play.record.quarantine.ending_ms
    play.tell(ok=1, accepted=1)
    assert play.record.quarantine.ending_ms


def test_incidents_within_an_hour_of_each_other_are_told_once() -> None:
    play = Play()
    play.run(60, apart_ms=1000, ok=40)
    for _ in range(10):
        play.run(60, apart_ms=1000, refused=8)
        play.run(180, apart_ms=1000, ok=40, accepted=8)
    play.run(3700, apart_ms=5000, ok=40)
    assert play.events == ["quarantine_begun", "quarantine_over"]


def test_a_share_that_is_usual_is_none() -> None:
    play = Play()
    for _ in range(4 * 24 * 20):
        play.tell(ok=291, refused=9)
        play.now_ms += 180_000
    assert judgement.usual_share(play.record) == pytest.approx(0.03, abs=0.003)
    assert not play.events
    for _ in range(60):
        play.tell(ok=80, refused=20)
        play.now_ms += 60_000
    assert play.events == ["quarantine_begun"]


@pytest.mark.parametrize(
    "counts",
    [
        {"others": 50},  # They failed before.
        {"others": 100, "ok": 1},  # They never were well: of a file of grants most are gone.
        {"ok": 2, "erring": 1, "proven_erring": 0},  # They were never refreshed here.
        {"ok": 2, "client": 1, "proven_client": 0},
        {"ok": 10, "erring": 3, "mended": 3},  # The next try mends them.
    ],
)
def test_what_is_no_evidence_begins_nothing(counts: dict[str, int]) -> None:
    play = Play()
    play.run(600, apart_ms=1000, **counts)
    assert not play.events


def test_a_quarantine_goes_on_where_a_sample_misled() -> None:
    """One in five is accepted, by chance: three of five may be."""
    play = Play()
    play.run(60, refused=2)
    play.tell(ok=3, accepted=3)
    assert play.record.quarantine is not None
    assert play.record.quarantine.ending_ms
    play.run(20, refused_again=1)
    assert not play.record.quarantine.ending_ms
    assert play.events == ["quarantine_begun"]


def test_one_of_the_quarantined_that_is_accepted_is_not_enough() -> None:
    play = Play()
    play.run(60, refused=2)
    play.tell(accepted=1, ok=1)
    play.tell(refused_again=5)
    play.tell(accepted=1, ok=1)
    assert play.record.quarantine is not None
    assert not play.record.quarantine.ending_ms


@pytest.mark.thorough
def test_refusals_and_well_answers_mixed_for_long_are_one_incident() -> None:
    play = Play()
    for _ in range(600):
        play.tell(ok=8, refused=2, accepted=1)
        play.now_ms += 1000
    for _ in range(600):
        play.tell(ok=8, refused=1, accepted=3)
        play.now_ms += 1000
    assert play.events == ["quarantine_begun"]
    play.run(3700, apart_ms=5000, ok=160)
    assert play.events == ["quarantine_begun", "quarantine_over"]


@pytest.mark.thorough
def test_a_part_of_the_accounts_that_err_for_hours_are_not_given_up_and_tried_when_it_is_over() -> (
    None
):
    """No witness is left after a while; it is not forgotten for that."""
    play = Play()
    play.run(60, ok=4, erring=6)
    assert play.record.hold is None
    play.run(3 * 3600, apart_ms=5000, ok=40, erring_again=20)
    assert play.record.quarantine is not None
    assert play.record.quarantine.kind == "erring"
    play.run(5, ok=2, mended=2)
    assert play.record.rouse_ms


@pytest.mark.thorough
def test_an_operator_ends_it_and_it_does_not_come_back_for_the_same() -> None:
    play = Play()
    play.run(60, refused=2)
    play.note(release(play.record, play.now_ms))
    assert play.record.quarantine is None
    assert play.record.released_ms
    assert play.record.rouse_ms
    play.run(3600, apart_ms=5000, refused_again=40, refused=20)
    assert play.record.quarantine is None
    play.run(700, ok=10)
    assert not play.record.released_ms  # As usual again: what comes then is another matter.
    play.run(60, refused=40)
    assert play.events == ["quarantine_begun", "quarantine_over", "quarantine_begun"]


@pytest.mark.thorough
def test_a_release_lasts_until_those_that_were_refused_have_been_asked_again() -> None:
    """
    What others were answered before it says nothing of that, nor do some that go well beside it.
    """
    play = Play()
    play.tell(ok=300)
    play.now_ms += 60_000
    play.tell(refused=50)
    play.note(release(play.record, play.now_ms))
    play.now_ms += 10_000
    play.tell(ok=20, refused_again=5)
    assert play.record.released_ms
    play.run(300, ok=10, refused_again=3)
    assert play.record.released_ms
    play.run(900, ok=10)
    assert not play.record.released_ms


def test_an_operator_may_begin_one_and_only_an_operator_ends_that() -> None:
    play = Play()
    play.note(set_quarantine(play.record, play.now_ms))
    play.note(set_quarantine(play.record, play.now_ms))
    play.run(60, ok=10, accepted=1)
    assert play.record.quarantine is not None
    play.note(release(play.record, play.now_ms))
    assert play.events == ["quarantine_begun", "quarantine_over"]
    assert play.record.released_ms
    play.note(set_quarantine(play.record, play.now_ms))
    assert not play.record.released_ms  # Nobody is given up at the next refusal for that any more.


def test_a_hold_is_no_quarantine() -> None:
    play = Play()
    play.run(60, client=20)
    assert play.record.hold is not None
    assert play.record.quarantine is None
    ask_probe(play.record, play.now_ms)
    assert throttle.claim(play.record, "n0", play.now_ms, 1000)


# --- the record


@given(
    st.lists(
        st.tuples(
            st.integers(0, 700_000),
            st.sampled_from(COUNTS),
            st.integers(1, 500),
            st.sampled_from([None, True, False]),
            st.integers(0, 90_000),
        ),
        max_size=60,
    )
)
def test_whatever_is_told_the_record_stays_small_and_readable(
    told: list[tuple[int, str, int, bool | None, int]],
) -> None:
    play = Play()
    for passed_ms, name, count, probe, wait_ms in told:
        play.now_ms += passed_ms
        one = Told("n0", Bucket(**{name: count}), words=dict(WORDS), probe=probe, wait_ms=wait_ms)
        fold(play.record, one, play.now_ms)
        found = play.record.rate
        assert found is None or found.per_second >= throttle.PER_SECOND_MIN
        times = [bucket.since_ms for bucket in play.record.buckets]
        assert times == sorted(times)
        assert not times or times[0] >= play.now_ms - KEPT_MS
        raw = play.record.pack()
        assert len(raw) < 4096
        assert parse_record(raw) == play.record
    total = within(play.record.buckets, 0)
    assert all(getattr(total, name) >= 0 for name in COUNTS)


def test_a_record_that_cannot_be_read_is_begun_anew() -> None:
    assert parse_record(b"\xc1") == ClientRecord()
    assert parse_record(b"") == ClientRecord()
    named = ClientRecord(rest_brief="brief").pack()
    assert parse_record(named.replace(b"brief", b"\xff\xff\xff\xff\xff")) == ClientRecord()


@pytest.mark.parametrize(
    ("outcome", "early", "kind"),
    [
        ("rate_limited", False, "limited"),
        ("rate_limited", True, "other"),
        ("invalid_grant", True, "refused"),
        ("ok", True, "ok"),
    ],
)
def test_a_429_to_an_account_that_was_not_due_yet_is_no_evidence(
    outcome: str, early: bool, kind: str
) -> None:
    assert Ended("a", Verdict(outcome, "account"), early=early).kind == kind
