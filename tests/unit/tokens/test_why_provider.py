"""
The stories of providers: what the client's record shows, what comes next, and what an operator can
do.
"""

from __future__ import annotations

import pytest
from support.tokens.story_scenes import CLOCK_MS, COUNTS, NOW_MS, SCENES, SHOP, provider, seen
from support.tokens.told_stories import Told, whole

from tidewarden.tokens.limits import throttle
from tidewarden.tokens.limits.client_record import ClientRecord, Hold
from tidewarden.tokens.why.story import ClientSeen

RELEASE = "`token provider release shop`"
TOLD = {
    "provider well": Told(
        "answers", ("answers", "accounts"), "refresh",
        ["Of 500 answers in the last 9 min 500 were good", "93 failing, 4 stopped, 3 dead", "--state stopped --provider shop"],
        [RELEASE],
    ),
    "provider new": Told("answers", ("no_answers", "accounts"), "refresh", ["It has no accounts", "Nothing is known"]),
    "provider refuses our client": Told(
        "refusing", ("answers", "hold", "accounts"), "probe",
        ["12 of 12 accounts that had been well", "none was refreshed", "40 probes since", "in 2 s", "client_id, its secret",
         "`token provider probe shop`", RELEASE],
    ),
    "provider errs": Told(
        "erring", ("answers", "hold", "accounts"), "probe",
        ["10 of 11", "1 was refreshed", "HTTP 503", "the provider's matter", "in 9 s"],
    ),
    "provider probed": Told("erring", ("answers", "hold", "accounts"), "probe", ["is asked just now, by n1"]),
    "provider rests": Told("limiting", ("answers", "rest", "accounts"), "rest", ["left alone until", "in 55 s"]),
    "provider rate": Told(
        "limiting", ("answers", "rate", "accounts"), "rate", ["12.5 requests a second", "13.9 a second", "90 asked for less"]
    ),
    "provider isolated 429": Told(
        "answers", ("answers", "isolated_limits", "accounts"), "refresh", ["3 answers of 429 did not slow all down"]
    ),
    "provider client_rate": Told("answers", ("answers", "client_rate", "accounts"), "refresh", ["At most 10 requests a second"]),
    "provider quarantined": Told(
        "quarantined", ("answers", "quarantine", "accounts"), "quarantine",
        ["62 %", "usual is 2.0 %", "57 accounts so far", "time alone does not end it", RELEASE],
    ),
    "provider quarantined, sampled": Told(
        "quarantined", ("answers", "quarantine", "sample", "accounts"), "quarantine",
        ["Of the last 7 that had failed and were asked again 1 went well"],
    ),
    "provider quarantined by an operator": Told(
        "quarantined", ("answers", "quarantine", "accounts"), "quarantine",
        ["An operator wants nobody given up", "until an operator releases it", RELEASE], ["62 %", "is over and all"],
    ),
    "provider quarantined for errors": Told(
        "quarantined", ("answers", "quarantine", "accounts"), "quarantine",
        ["30 % of the answers", "HTTP 500", "while others went well", "has failures count again"], ["usual is", "by mistake"],
    ),
    "provider quarantine ending": Told(
        "quarantined", ("answers", "quarantine", "quarantine_ending", "accounts"), "quarantine",
        ["are well again", "is over at 2026-11-18 12:02:40 UTC (in 56 min)"], ["one by one"],
    ),
    "provider held and quarantined": Told(
        "refusing", ("answers", "hold", "quarantine", "accounts"), "probe", ["`token provider probe shop`"], [RELEASE]
    ),
    "provider released": Told(
        "answers", ("answers", "released", "tried_anew", "accounts"), "refresh",
        ["An operator released it", "one more refusal is enough"],
    ),
    "provider silent": Told(
        "silent", ("answers", "silence", "accounts"), "silence", ["as seen by n1 (refused); other nodes are answered", "n1 asks again", "in 8 s", "is up, and whether"]
    ),
    "provider silent, tried as accounts fall due": Told(
        "silent", ("answers", "silence", "accounts"), "silence", ["n1 asks again as accounts fall due"], ["are refreshed as they"]
    ),
    "provider away": Told("unknown", ("store_away",), "store_away", ["cannot be said"]),
}  # fmt: skip


def test_there_is_a_word_on_every_scene_of_providers() -> None:
    assert {name for name in SCENES if name.startswith("provider")} == TOLD.keys()


@pytest.mark.parametrize("scene", TOLD)
def test_a_story_says_what_the_record_shows_and_no_more(scene: str) -> None:
    story, told = SCENES[scene](), TOLD[scene]
    assert story.state == told.state
    assert [one.code for one in story.concluded] == list(told.concluded)
    assert story.next.code == told.next
    text = whole(story)
    assert [words for words in told.says if words not in text] == []
    assert [words for words in told.never if words in text] == []


def test_a_record_of_long_ago_claims_nothing_of_now() -> None:
    """Its buckets, silences and rest are past: nothing but the last good refresh is told."""
    records = [
        ClientRecord(buckets=seen().record.buckets, well_ms=CLOCK_MS),
        seen(rest_ms=CLOCK_MS + 1).record,
    ]
    for record in records:
        story = provider(ClientSeen(record, CLOCK_MS + 3_600_000, NOW_MS - CLOCK_MS))
        assert (story.state, story.next.code) == ("answers", "refresh")
        assert [one.code for one in story.concluded] == ["no_answers", "accounts"]
        assert "1 h ago" in story.summary


def test_a_probe_that_was_claimed_and_never_ended_is_not_told_as_under_way() -> None:
    held = Hold(
        "client",
        CLOCK_MS - 60_000,
        CLOCK_MS - 5_000,
        3,
        "n1",
        CLOCK_MS - 1_000,
        "invalid_client",
        "HTTP 401",
    )
    story = provider(seen(hold=held))
    assert "by n1" not in story.next.text
    assert story.next.at_ms == NOW_MS


def test_the_pause_after_a_probe_is_the_models_own() -> None:
    held = Hold(
        "erring", CLOCK_MS - 60_000, CLOCK_MS + 5_000, 30, outcome="unavailable", brief="HTTP 503"
    )
    longest_s = throttle.pause_ms("erring", 30 + throttle.PROBES, 60_000) / 1000
    assert (
        f"another is asked {longest_s:.0f} s later at most" in provider(seen(hold=held)).next.text
    )


def test_counts_that_are_not_known_are_not_told() -> None:
    assert "accounts" not in [one.code for one in provider(seen(), {}).concluded]
    assert dict(provider(seen()).concluded[-1].figures)["failing"] == COUNTS["failing"]
    assert SHOP.name in provider(seen()).summary
