"""
The stories of accounts: each situation tells what is known, what comes next, and what can be done.
"""

from __future__ import annotations

import re

import pytest
from support.tokens.story_scenes import NOW_MS, SCENES, account, refused, seen
from support.tokens.told_stories import Told, whole

from tidewarden.cli import VERBS, command_line
from tidewarden.tokens.policy import failures

SETTLED = ("It is asked again, minutes to an hour apart",)
"""Advice on refusals that count."""
TOLD = {
    "healthy": Told("fresh", ("token",), "refresh", ["nothing is the matter", "in 45 min"]),
    "healthy, never refreshed": Told(
        "fresh", ("token",), "refresh", ["no refresh of it has gone well since"], ["last refresh went well"]
    ),
    "no access token yet": Told("expiring", ("token",), "turn", ["it has no access token yet", "Readers get nothing"]),
    "late": Told("late", ("token",), "turn", ["its token expired at", "more nodes or `refreshers`"]),
    "late while held": Told(
        "late", ("token", "provider_held"), "after_probe", ["all accounts of shop wait", "`token why shop`"], ["more nodes"]
    ),
    "first refusal": Told(
        "failing", ("token", "refused"), "retry",
        ["1 of 3", "number 2 of 3", "shop itself seems well", "`token provider quarantine shop`", *SETTLED],
        ["own matter"],
    ),
    "second refusal": Told(
        "failing", ("token", "refused"), "retry", ["2 of 3", "in 48 min", "if it is refused then, and others are refreshed well"]
    ),
    "refused, nobody else well": Told(
        "failing", ("token", "refused"), "retry",
        ["3 of 3", "No account of shop was refreshed well since it began", "it may be the provider's matter", "after a day"],
        ["seems well"],
    ),
    "third refusal due": Told("failing", ("token", "refused"), "turn", ["2 of 3"]),
    "quarantined": Told(
        "failing", ("token", "refused_in_quarantine", "provider_quarantine"), "retry",
        ["no refusal counts meanwhile", "Refusals do not count", "In quarantine since",
         "62 %", "usual is 2.0 %", "`token provider release shop`"],
        ["it is given up", *SETTLED],
    ),
    "released": Told(
        "failing", ("token", "refused"), "retry", ["the next refusal is enough", "if it is refused then, it is given up"],
        ["One counts only"],
    ),
    "held for client words": Told(
        "failing", ("token", "shared_failure", "provider_held"), "after_probe",
        ["nothing counts against it", "our client's matter", "client_id, its secret", "`token why shop`"],
    ),
    "held for 5xx": Told(
        "failing", ("token", "shared_failure", "provider_held"), "after_probe", ["the provider's matter", "HTTP 503"]
    ),
    "resting": Told("expiring", ("token", "provider_rests"), "after_rest", ["left alone until", "in 55 s"]),
    "its own 5xx": Told(
        "failing", ("token", "own_failure"), "retry",
        ["it is stopped at 4 d", "3 h of that count", "Other accounts of shop are refreshed well"],
    ),
    "isolated 429": Told("failing", ("token", "limited"), "retry", ["It waits alone", "it alone is to wait"], ["client_rate"]),
    "429 for many": Told(
        "failing", ("token", "limited", "provider_rate"), "retry", ["Many accounts of shop are", "12.5 requests a second"],
        ["alone"],
    ),
    "account limited": Told("failing", ("token", "limited"), "retry", ["It waits alone"]),
    "unknown within grace": Told(
        "failing", ("token", "unknown_outcome"), "retry", ["By grace_s the old refresh token works until", "in 55 s"]
    ),
    "unknown after grace": Told(
        "failing", ("token", "unknown_outcome"), "retry", ["grace of its old refresh token ended", "next try is refused"]
    ),
    "unknown, tokens do not rotate": Told(
        "failing", ("token", "unknown_outcome"), "retry", ["A use ends no refresh token of shop"], ["is refused"]
    ),
    "unknown, no grace": Told("failing", ("token", "unknown_outcome"), "retry", ["without a grace"]),
    "holder away": Told(
        "failing", ("token", "unknown_outcome", "holder"), "retry", ["n1.7 may hold the answer", "Bring n1 back"], ["Ask whoever"]
    ),
    "refused after a doubt": Told("failing", ("token", "unknown_outcome", "refused"), "retry", ["1 of 3", "number 2 of 3"]),
    "unsealable": Told("failing", ("token", "unsealable"), "retry", ["cannot be opened here", "bring it back"]),
    "odd word": Told("failing", ("token", "refused"), "retry", ["HTTP 400 E1013", "[providers.shop.errors]"]),
    "kept answer": Told(
        "failing", ("token", "unknown_outcome", "kept_answer"), "retry", ["n2 keeps an answer", "`token answers shop/42`"],
        ["PROVIDER/ACCOUNT"],
    ),
    "not sent": Told("failing", ("token", "unsent"), "retry", ["Nothing was sent", "See whether https://auth.shop.example is up"]),
    "stopped": Told(
        "stopped", ("token", "stopped"), "nothing",
        ["nobody knows that its grant has ended", "44 tries", "`token refresh` asks again", "--state stopped --provider shop"],
        ["consent", "they wait"],
    ),
    "dead": Told(
        "dead", ("token", "dead"), "nothing", ["3 refusals counted", "a person has to consent again", "`token refresh` asks once more"],
        ["they wait"],
    ),
    "dead after a release": Told(
        "dead", ("token", "dead"), "nothing", ["1 refusal counted", "when an operator has released"], ["the first at"]
    ),
    "lost rotation": Told(
        "lost_rotation", ("token", "lost_rotation"), "nothing",
        ["went with its answer", "unless a node comes back", "consent again"],
    ),
    "account interval": Told(
        "expiring", ("token", "not_before"), "refresh", ["account_interval_s = 900", "in 5 min"], ["or sooner"]
    ),
    "not before": Told("expiring", ("token", "not_before"), "refresh", ["not_before_s = 600", "in 40 min"], ["or sooner"]),
    "consent ends": Told("fresh", ("token", "consent_ends"), "refresh", ["ends by itself", "has to consent again before"]),
    "consent moves": Told("fresh", ("token", "consent_ends"), "refresh", ["later with each refresh"], ["has to consent"]),
    "a service account": Told(
        "dead", ("token", "dead"), "nothing",
        ["refuses what it sends", "See that the provider gives this client", "`token delete`"], ["refresh token", "consent"],
    ),
    "unreadable troubles": Told(
        "failing", ("token", "unreadable"), "turn", ["a time that nobody knows", "the next one writes it anew"], ["Ask whoever"]
    ),
    "store away": Told(
        "unknown", ("store_away", "stale_token"), "store_away", ["cannot be said", "marked stale", "in 50 min", "tidewarden status"]
    ),
    "store away, nothing known": Told("unknown", ("store_away", "no_token_here"), "store_away", ["no living token of it"]),
}  # fmt: skip
DURATIONS = ("window_ms", "own_ms")


def test_there_is_a_word_on_every_scene_of_accounts() -> None:
    assert {name for name in SCENES if not name.startswith("provider")} == TOLD.keys()


@pytest.mark.parametrize("scene", TOLD)
def test_a_story_says_what_is_known_and_no_more(scene: str) -> None:
    story, told = SCENES[scene](), TOLD[scene]
    assert story.state == told.state
    assert [one.code for one in story.concluded] == list(told.concluded)
    assert story.next.code == told.next
    text = whole(story)
    assert [words for words in told.says if words not in text] == []
    assert [words for words in told.never if words in text] == []


@pytest.mark.parametrize("scene", SCENES)
def test_every_story_is_made_of_whole_sentences_and_real_times(scene: str) -> None:
    story = SCENES[scene]()
    for text in (
        story.summary,
        *(one.text for one in story.concluded),
        story.next.text,
        *story.advice,
    ):
        assert text.endswith("."), text
        assert not re.search(r"None|1970|\{|\}|  |\.\.|,\.", text), text
    figures = [item for one in story.concluded for item in one.figures.items()]
    times = [at_ms for key, at_ms in figures if key.endswith("_ms") and key not in DURATIONS]
    for at_ms in (story.now_ms, story.since_ms, story.next.at_ms, *times):
        assert not at_ms or abs(at_ms - NOW_MS) < 10 * 86_400_000
    shown = story.shown()
    assert [one["code"] for one in shown["concluded"]] == [one.code for one in story.concluded]
    assert shown["next"]["at_ms"] == story.next.at_ms
    at = [one["at_ms"] for one in shown["asked"]]
    assert at == sorted(at), "the latest at the end"


@pytest.mark.parametrize("scene", SCENES)
def test_every_command_that_is_advised_is_one(scene: str) -> None:
    group = command_line(*VERBS)
    for words in re.findall(r"`(?:tidewarden )?(token|status)([^`]*)`", whole(SCENES[scene]())):
        names = [words[0], *(word for word in words[1].split() if re.fullmatch(r"[a-z]+", word))]
        found = group
        for name in names:
            if not hasattr(found, "commands"):
                break
            assert name in found.commands, words
            found = found.commands[name]


def test_who_waits_for_a_provider_is_asked_no_sooner_than_it() -> None:
    story = SCENES["held for client words"]()
    assert story.next.at_ms == NOW_MS + 3000
    story = account(client=seen(rest_ms=5_055_000))
    assert story.next.code == "refresh", "nothing is due before that"


def test_refusals_are_counted_as_the_policy_does() -> None:
    for counted in range(failures.CONFIRMATIONS):
        told = account(troubles=refused(counted, 120_000, 480_000)).concluded[1]
        assert (told.figures["refusals"], told.figures["needed"]) == (
            counted,
            failures.CONFIRMATIONS,
        )
    text = account(troubles=refused(1, 120_000, 480_000)).concluded[1].text
    assert "(10 min and 50 min)" in text, "the times between them, as the policy has them"
