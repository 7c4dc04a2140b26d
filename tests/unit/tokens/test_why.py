"""
The stories of accounts and providers: each situation tells what is known, what comes next, and what
can be done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
import pytest

from tidewarden.cli import VERBS, command_line
from tidewarden.cli.token.why import lines_of
from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import AccountDetails, AccountRow, RefreshTroubles
from tidewarden.tokens.limits import throttle
from tidewarden.tokens.limits.answer_counts import Bucket, Silence
from tidewarden.tokens.limits.client_record import ClientRecord, Hold, Quarantine, Rate
from tidewarden.tokens.policy import failures
from tidewarden.tokens.verbs.provider_status import figures
from tidewarden.tokens.why.facts import Facts, account_facts, away_facts, client_facts
from tidewarden.tokens.why.story import Story, account_story, away_story, provider_story
from tidewarden.tokens.why.table import sections, told
from tidewarden.tokens.why.wording import count, span, when

NOW_MS = 1_795_000_000_000  # 2026-11-18 11:06:40 UTC
CLOCK_MS = 5_000_000
S, MIN, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
SHOP = Provider(
    name="shop", token_url="https://auth.shop.example/token", client_id="c0", grace_s=0.0
)
COUNTS = {"total": 2000, "fresh": 1880, "expiring": 20, "failing": 93, "stopped": 4, "dead": 3}
REFUSED = "HTTP 400 invalid_grant"


class Scene(NamedTuple):
    """A situation and what its story must say; ``never``: what it must not."""

    facts: Facts
    state: str
    concluded: str
    next: str
    says: tuple[str, ...] = ()
    never: tuple[str, ...] = ()


def seen(**fields: Any) -> ClientRecord:
    """The record of a client of which 500 accounts were refreshed lately."""
    well = [Bucket(CLOCK_MS - 9 * MIN, ok=480), Bucket(CLOCK_MS - 4 * S, ok=20)]
    return ClientRecord(**{"buckets": well, "well_ms": CLOCK_MS - 2 * S} | fields)


def provider(record: ClientRecord, counts: Any = COUNTS, *, late_ms: int = 0, **of: Any) -> Facts:
    clock_ms = CLOCK_MS + late_ms
    return client_facts(replace(SHOP, **of), record, clock_ms, NOW_MS - CLOCK_MS, counts)


def row(
    stored: int = -10 * MIN, ends: int = 50 * MIN, due: int = 45 * MIN, **of: Any
) -> AccountRow:
    """An account's row, with its times from now on."""
    times = (NOW_MS + stored, NOW_MS + ends if ends else 0, NOW_MS + due)
    fields = {"access": b"x", "refreshed": True} | of
    return AccountRow(1, 4, *times, b"o" * 8, b"c" * 8, **fields)


GONE = row(-2 * HOUR, -HOUR, -HOUR - 5 * MIN)
"""Of an account whose token has expired."""


def account(
    found: AccountRow, troubles: RefreshTroubles | None = None, record: Any = None, **of: Any
) -> Facts:
    patience = failures.Patience()
    return account_facts(
        provider(record or seen(), {}, **of), "42", found, troubles, NOW_MS, patience
    )


def failing(outcome: str, said: str, ago: int, then: int = 0, **fields: Any) -> RefreshTroubles:
    """Failed ``ago`` milliseconds ago, and is tried again ``then`` from now."""
    at_ms = NOW_MS - ago
    given = {"tries": 1, "last_ms": at_ms} | fields
    asked, next_ms = ((at_ms, outcome, said),), NOW_MS + then if then else 0
    return RefreshTroubles(
        outcome=outcome, message=said, first_ms=at_ms, next_ms=next_ms, asked=asked, **given
    )


def refused(counted: int, ago: int, then: int = 0, **fields: Any) -> RefreshTroubles:
    times = {"refused_ms": NOW_MS - ago, "confirmed_ms": NOW_MS - ago}
    of = {"outcome": "invalid_grant", "said": REFUSED, "refusals": counted} | times | fields
    return failing(ago=ago, then=then, **of)


def doubt(said: str, ago: int, then: int, **fields: Any) -> RefreshTroubles:
    return failing("unknown", said, ago, then, doubt_ms=NOW_MS - ago, **{"doubts": 1} | fields)


HOLD = Hold(
    "client", CLOCK_MS - 3 * MIN, CLOCK_MS + 2 * S, 40, "", 0, "invalid_client",
    "HTTP 401 invalid_client", 12, 12,
)  # fmt: skip
ERRING = Hold(
    "erring", CLOCK_MS - 3 * MIN, CLOCK_MS + 9 * S, 9, "", 0, "unavailable", "HTTP 503", 10, 11
)
JUMPED = Quarantine(CLOCK_MS - 4 * MIN, 57, 0.62, 0.02, "invalid_grant", REFUSED)


def jumped(**fields: Any) -> ClientRecord:
    """The record of a client many of whose accounts are refused."""
    buckets = [Bucket(CLOCK_MS - 8 * MIN, ok=35), Bucket(CLOCK_MS - 4 * MIN, others=57, refused=57)]
    found = msgspec.structs.replace(JUMPED, **fields)
    return seen(buckets=buckets, quarantine=found, well_ms=CLOCK_MS - 4 * MIN)


BAD_CLIENT = seen(
    buckets=[Bucket(CLOCK_MS - 8 * MIN, ok=400), Bucket(CLOCK_MS - 3 * MIN, others=52, client=12)],
    hold=HOLD, well_ms=CLOCK_MS - 3 * MIN - 10 * S,
)  # fmt: skip
RESTING = seen(
    rest_ms=CLOCK_MS + 55 * S, rest_brief="HTTP 429", buckets=[Bucket(CLOCK_MS - 5 * S, limited=40)]
)
FEW_429 = seen(buckets=[Bucket(CLOCK_MS - 20 * S, ok=480, limited=3)])
SLOW = seen(
    rate=Rate(12.5, 13.9, CLOCK_MS - 4 * S), buckets=[Bucket(CLOCK_MS - 20 * S, ok=480, limited=90)]
)


def silent(next_ms: int, *of: str, **fields: Any) -> ClientRecord:
    return seen(
        silences={"n1": Silence(CLOCK_MS - 70 * S, CLOCK_MS - 3 * S, next_ms, *of)}, **fields
    )


def consent(end: str) -> AccountRow:
    return row(details=AccountDetails(consent_expires_ms=NOW_MS + 6 * DAY, consent_end=end))


DEAD = {"dead": True, "last_ms": NOW_MS - 10 * MIN}
AGAIN = "It is asked again, minutes to an hour apart"
OTHERS = "Other accounts of shop are refreshed well"
SCENES = {
    # --- accounts
    "healthy": Scene(account(row()), "fresh", "token", "refresh", ("nothing is the matter", "in 45 min")),
    "never refreshed": Scene(
        account(row(refreshed=False)), "fresh", "token", "refresh",
        ("no refresh of it has gone well since",), ("last refresh went well",),
    ),
    "no access token yet": Scene(
        account(row(ends=0, due=-S, refreshed=False, access=b"")), "expiring", "token", "turn",
        ("it has no access token yet", "Readers get nothing"),
    ),
    "late": Scene(
        account(GONE), "late", "token", "turn", ("its token expired at", "more nodes or `refreshers`")
    ),
    "late while held": Scene(
        account(GONE, None, BAD_CLIENT), "late", "token provider_held", "after_probe",
        ("all accounts of shop wait", "`token why shop`"), ("more nodes",),
    ),
    "first refusal": Scene(
        account(row(), refused(1, 2 * MIN, 8 * MIN)), "failing", "token refused", "retry",
        ("1 of 3", "(10 min and 50 min)", "number 2 of 3", "shop itself seems well",
         "`token provider quarantine shop`", AGAIN), ("own matter",),
    ),
    "second refusal": Scene(
        account(GONE, refused(2, 12 * MIN, 48 * MIN)), "failing", "token refused", "retry",
        ("2 of 3", "in 48 min", "If it is refused then, and others are refreshed well"),
    ),
    "asked before it counts": Scene(
        account(GONE, refused(2, 12 * MIN, 8 * MIN)), "failing", "token refused", "retry",
        ("A refusal then does not count yet",), ("it is given up.",),
    ),
    "refused, nobody else well": Scene(
        account(GONE, refused(3, 90 * MIN, 30 * MIN), seen(well_ms=CLOCK_MS - 3 * HOUR, buckets=[])),
        "failing", "token refused", "retry",
        ("3 of 3", "No account of shop was refreshed well since it began",
         "it may be the provider's matter", "after a day"), ("seems well",),
    ),
    "refused, nobody was ever well": Scene(
        account(GONE, refused(1, 2 * MIN, 8 * MIN, clustered=True), ClientRecord()),
        "failing", "token refused", "retry",
        ("so nobody knows whose matter it is", "More accounts of shop than usual", "a day (1 d)"),
    ),
    "third refusal due": Scene(
        account(GONE, refused(2, 62 * MIN, -2 * S)), "failing", "token refused", "turn", ("2 of 3",)
    ),
    "quarantined": Scene(
        account(GONE, refused(0, 2 * MIN, 40 * MIN), jumped()), "failing",
        "token refused_in_quarantine provider_quarantine", "retry",
        ("no refusal counts", "Refusals do not count", "asked again one by one",
         "Nothing for this account", "`token why shop`"), ("it is given up", AGAIN),
    ),
    "refused before, and in a quarantine": Scene(
        account(GONE, refused(1, HOUR, MIN, outcome="unsealable", said="no key k7 here"), jumped()),
        "failing", "token refused_in_quarantine provider_quarantine", "retry",
        ("no key k7 here", "1 of 3 counted before", "bring it back"), ("Nothing for this account",),
    ),
    "released": Scene(
        account(GONE, refused(1, 20 * MIN, 4 * S), seen(released_ms=CLOCK_MS - 10 * S)), "failing",
        "token refused", "retry", ("the next refusal is enough", "If it is refused then, it is given up"),
        ("One counts only",),
    ),
    "held for client words": Scene(
        account(GONE, failing("invalid_client", "HTTP 401", 170 * S, 3 * S, tries=0), BAD_CLIENT),
        "failing", "token shared_failure provider_held", "after_probe",
        ("does not count against it", "shop refuses our client", "client_id, its secret", "`token why shop`"),
    ),
    "refused while held": Scene(
        account(GONE, refused(1, 2 * MIN, 8 * MIN), seen(hold=ERRING)), "failing",
        "token refused_while_held provider_held", "after_probe", ("does not count", "1 counted so far", AGAIN),
    ),
    "held for 5xx": Scene(
        account(GONE, failing("unavailable", "HTTP 503", 170 * S, 5 * S, tries=0), seen(hold=ERRING)),
        "failing", "token shared_failure provider_held", "after_probe", ("answers with errors", "HTTP 503"),
    ),
    "resting": Scene(
        account(row(due=-S), None, RESTING), "expiring", "token provider_rests", "after_rest",
        ("left alone until", "in 55 s"),
    ),
    "its own 5xx": Scene(
        account(row(-5 * HOUR, -HOUR, -2 * HOUR),
                failing("unavailable", "HTTP 500", 4 * HOUR, 2 * HOUR, tries=13, own_ms=3 * HOUR)),
        "failing", "token own_failure", "retry", ("it is stopped at 4 d", "3 h of that count", OTHERS),
    ),
    "a 5xx, nobody else well": Scene(
        account(GONE, failing("unavailable", "HTTP 500", HOUR, MIN), seen(well_ms=CLOCK_MS - 3 * HOUR)),
        "failing", "token own_failure", "retry", ("it may be the provider's matter", "Ask whoever"),
    ),
    "a 5xx, nobody was ever well": Scene(
        account(GONE, failing("unavailable", "HTTP 500", HOUR, MIN), ClientRecord()), "failing",
        "token own_failure", "retry", ("so nobody knows whose matter it is",),
    ),
    "isolated 429": Scene(
        account(row(due=-MIN), failing("rate_limited", "HTTP 429", 10 * S, 50 * S), FEW_429), "failing",
        "token limited", "retry", ("It waits alone", "it alone is to wait"), ("client_rate",),
    ),
    "429 for many": Scene(
        account(row(due=-MIN), failing("rate_limited", "HTTP 429", 10 * S, 4 * S), SLOW), "failing",
        "token limited provider_rate", "retry", ("Many accounts of shop are", "12.5 requests a second"),
        ("alone",),
    ),
    "account limited": Scene(
        account(row(), failing("account_limited", "HTTP 429 slow", 10 * S, 30 * S)), "failing",
        "token limited", "retry", ("It waits alone",),
    ),
    "unknown within grace": Scene(
        account(GONE, doubt("HTTP 504", 5 * S, 2 * S), grace_s=60), "failing", "token unknown_outcome",
        "retry", ("By grace_s the old refresh token works until", "in 55 s"),
    ),
    "unknown after grace": Scene(
        account(GONE, doubt("HTTP 504", 90 * S, 30 * S, doubts=2), grace_s=60), "failing",
        "token unknown_outcome", "retry", ("no grace is left after", "30 s ago", "next try is refused"),
    ),
    "unknown, tokens do not rotate": Scene(
        account(GONE, doubt("no answer within 30 s", 5 * S, 2 * S), rotation="none"), "failing",
        "token unknown_outcome", "retry", ("A use ends no refresh token of shop",), ("is refused",),
    ),
    "holder away": Scene(
        account(row(due=-S), doubt("n1 may hold the answer", 20 * S, 10 * S, holder="n1.7")), "failing",
        "token unknown_outcome holder", "retry", ("n1.7 may hold the answer", "Bring n1 back"),
        ("Ask whoever", "ask whoever"),
    ),
    "refused after a doubt": Scene(
        account(GONE, refused(1, 3 * MIN, 7 * MIN, doubts=1, doubt_ms=NOW_MS - 4 * MIN, spare_refused=True)),
        "failing", "token unknown_outcome spare_refused refused", "retry", ("1 of 3", "number 2 of 3"),
    ),
    "unsealable": Scene(
        account(GONE, failing("unsealable", "no key k7 here", 3 * MIN, 5 * MIN, tries=8)), "failing",
        "token unsealable", "retry", ("cannot be opened here", "bring it back"),
    ),
    "odd word": Scene(
        account(GONE, refused(1, 2 * MIN, 8 * MIN, outcome="rejected", said="HTTP 400 E1013")),
        "failing", "token refused", "retry", ("HTTP 400 E1013", "[providers.shop.errors]"),
    ),
    "kept answer": Scene(
        account(GONE, doubt("HTTP 200 without an access_token", 5 * S, 2 * S, kept="n2")), "failing",
        "token kept_answer unknown_outcome", "retry", ("n2 keeps an answer", "`token answers shop/42`"),
        ("PROVIDER/ACCOUNT",),
    ),
    "not sent": Scene(
        account(GONE, failing("refused", "no connection", 40 * S, 9 * S, tries=4)), "failing",
        "token unsent", "retry", ("Nothing was sent", "See whether https://auth.shop.example is up"),
    ),
    "misconfigured": Scene(
        account(GONE, failing("bad_url", "no address", 40 * S, 9 * S)), "failing", "token misconfigured",
        "retry", ("No request can be made of [providers.shop]", "Look at token_url"),
    ),
    "stopped": Scene(
        account(row(-6 * DAY, -5 * DAY, -5 * DAY),
                failing("unavailable", "HTTP 500", 5 * DAY, tries=44, stopped=True, own_ms=4 * DAY + HOUR)),
        "stopped", "token stopped", "nothing",
        ("nobody knows that its grant has ended", "44 tries", "`token refresh` asks again",
         "--state stopped --provider shop"), ("consent", "They wait"),
    ),
    "stopped, and refused last": Scene(
        account(row(-6 * DAY, -5 * DAY, -5 * DAY), refused(1, DAY, outcome="rejected", stopped=True)),
        "stopped", "token stopped", "nothing", ("1 try brought nothing", "If it is refused then, ask the account's owner to consent"),
    ),
    "dead": Scene(
        account(GONE, refused(3, 70 * MIN, **DEAD)), "dead", "token dead", "nothing",
        ("3 refusals counted", "a person has to consent again", "`token refresh` asks once more"),
        ("They wait", "Fewer"),
    ),
    "dead after a release": Scene(
        account(GONE, refused(1, 10 * MIN, **DEAD), seen(released_ms=CLOCK_MS - 11 * MIN)), "dead",
        "token dead", "nothing", ("1 refusal counted", "when an operator has released"),
    ),
    "a service account": Scene(
        account(GONE, refused(3, 70 * MIN, **DEAD), grant="client_credentials", rotation="none"),
        "dead", "token dead", "nothing",
        ("refuses what it sends", "See that the provider gives this client", "`token delete`"),
        ("refresh token", "consent"),
    ),
    "lost rotation": Scene(
        account(row(-3 * HOUR, -HOUR, -2 * HOUR), refused(
            3, 2 * HOUR, doubts=1, doubt_ms=NOW_MS - 2 * HOUR, outcome="lost_rotation", **DEAD)),
        "lost_rotation", "token lost_rotation", "nothing",
        ("went with its answer", "if a node comes back", "consent again"),
    ),
    "account interval": Scene(
        account(row(due=-S), account_interval_s=900.0), "expiring", "token not_before", "refresh",
        ("account_interval_s = 900", "in 5 min"), ("sooner",),
    ),
    "not before": Scene(
        account(row(due=-S), not_before_s=600.0), "expiring", "token not_before", "refresh",
        ("not_before_s = 600", "in 40 min"), ("sooner",),
    ),
    "tokens that live too short": Scene(
        account(row(-2 * S, 3 * S, -S)), "expiring", "token not_before", "refresh",
        ("its token lives for 5 s", "after 10 s"),
    ),
    "consent ends": Scene(
        account(consent("fixed")), "fresh", "token consent_ends", "refresh",
        ("ends by itself", "has to consent again before"),
    ),
    "consent moves": Scene(
        account(consent("moves")), "fresh", "token consent_ends", "refresh",
        ("later with each refresh",), ("has to consent",),
    ),
    "unreadable troubles": Scene(
        account(row(), RefreshTroubles(outcome="unreadable")), "failing", "token unreadable", "turn",
        ("a time that nobody knows", "the next one writes it anew"), ("Ask whoever",),
    ),
    "store away": Scene(
        away_facts(SHOP, "42", 50 * MIN, "no answer for 2 s", NOW_MS), "unknown",
        "store_away stale_token", "store_away",
        ("cannot be said", "marked stale", "in 50 min", "tidewarden status"),
    ),
    "store away, nothing known": Scene(
        away_facts(replace(SHOP, orphan="refresh"), "42", 0, "no answer for 2 s", NOW_MS), "unknown",
        "store_away no_token_here", "store_away", ("no living token of it", "refreshes alone"),
    ),
    # --- providers
    "provider well": Scene(
        provider(seen()), "answers", "answers accounts", "refresh",
        ("Of 500 answers in the last 9 min 500 were good", "93 failing, 4 stopped, 3 dead",
         "likewise dead", "--state stopped --provider shop"), ("`token provider release shop`",),
    ),
    "provider new": Scene(
        provider(ClientRecord(), {"total": 0}), "answers", "no_answers accounts", "refresh",
        ("It has 0 accounts", "Nothing is known"),
    ),
    "provider whose accounts are not counted": Scene(provider(seen(), {}), "answers", "answers", "refresh"),
    "provider not asked for an hour": Scene(
        provider(seen(rest_ms=CLOCK_MS + 1), late_ms=HOUR), "answers", "no_answers accounts", "refresh",
        ("1 h ago",),
    ),
    "provider refuses our client": Scene(
        provider(BAD_CLIENT), "refusing", "answers hold accounts", "probe",
        ("12 of 12 accounts that had been well", "40 probes since", "in 2 s", "client_id, its secret",
         "`token provider probe shop`", "`token provider release shop`"),
    ),
    "provider errs": Scene(
        provider(seen(hold=ERRING)), "erring", "answers hold accounts", "probe",
        ("10 of 11", "HTTP 503", "answers with errors", "in 9 s", "another is asked 10 s later at most"),
    ),
    "provider probed": Scene(
        provider(seen(hold=msgspec.structs.replace(ERRING, claim="n1", claim_ms=CLOCK_MS + 20 * S))),
        "erring", "answers hold accounts", "probe", ("is asked just now, by n1",),
    ),
    "provider whose probe never ended": Scene(
        provider(seen(hold=msgspec.structs.replace(ERRING, claim="n1", claim_ms=CLOCK_MS - S))),
        "erring", "answers hold accounts", "probe", (), ("by n1",),
    ),
    "provider rests": Scene(
        provider(RESTING), "limiting", "answers rest accounts", "rest", ("left alone until", "in 55 s")
    ),
    "provider rate": Scene(
        provider(SLOW), "limiting", "answers rate accounts", "rate",
        ("12.5 requests a second", "13.9 a second", "90 asked for less"),
    ),
    "provider isolated 429": Scene(
        provider(FEW_429), "answers", "answers isolated_limits accounts", "refresh",
        ("3 answers of 429 did not slow all down",),
    ),
    "provider client_rate": Scene(
        provider(seen(), client_rate=10.0), "answers", "answers client_rate accounts", "refresh",
        ("At most 10 requests a second",),
    ),
    "provider quarantined": Scene(
        provider(jumped()), "quarantined", "answers quarantine accounts", "quarantine",
        ("62 %", "usual is 2 %", "57 accounts so far", "time alone does not end it",
         "`token provider release shop`"),
    ),
    "provider quarantined, sampled": Scene(
        provider(jumped(accepted=1, sampled=7)), "quarantined", "answers quarantine sample accounts",
        "quarantine", ("Of the last 7 that had failed and were asked again 1 went well",),
    ),
    "provider quarantined by an operator": Scene(
        provider(jumped(by_operator=True)), "quarantined", "answers quarantine accounts", "quarantine",
        ("An operator wants it so", "until an operator releases it", "`token provider release shop`"),
        ("62 %",),
    ),
    "provider quarantined for errors": Scene(
        provider(jumped(refused_share=0.3, brief="HTTP 500", kind="erring")), "quarantined",
        "answers quarantine accounts", "quarantine",
        ("30 % of the answers", "HTTP 500", "while others went well", "has failures count again"),
        ("usual is", "by mistake"),
    ),
    "provider quarantined from the start": Scene(
        provider(jumped(kind="unproven")), "quarantined", "answers quarantine accounts", "quarantine",
        ("No account was ever refreshed well here", REFUSED, "client_id"), ("62 %",),
    ),
    "provider quarantine ending": Scene(
        provider(jumped(accepted=3, sampled=4, ending_ms=CLOCK_MS - 4 * MIN)), "quarantined",
        "answers quarantine quarantine_ending accounts", "quarantine",
        ("are well again", "is over at 2026-11-18 12:02:40 UTC (in 56 min)"), ("one by one",),
    ),
    "provider held and quarantined": Scene(  # A release would say that the refusals are true.
        provider(seen(hold=HOLD, quarantine=JUMPED)), "refusing", "answers hold quarantine accounts",
        "probe", ("`token provider probe shop`",), ("`token provider release shop`",),
    ),
    "provider released": Scene(
        provider(seen(released_ms=CLOCK_MS - 5 * MIN, rouse_ms=CLOCK_MS - 5 * MIN)), "answers",
        "answers released tried_anew accounts", "refresh",
        ("An operator released it", "one more refusal is enough"),
    ),
    "provider silent": Scene(
        provider(silent(CLOCK_MS + 8 * S, "refused", "no connection")), "silent",
        "answers silence accounts", "silence",
        ("as seen by n1 (no connection); other nodes are answered", "n1 will ask again", "in 8 s",
         "is up, and whether"),
    ),
    "provider silent, tried as accounts fall due": Scene(
        provider(silent(0, "refused", well_ms=CLOCK_MS - MIN - 20 * S)), "silent",
        "answers silence accounts", "silence", ("n1 will ask again as accounts fall due",),
        ("are refreshed as they", "other nodes"),
    ),
    "provider blocked": Scene(
        provider(silent(0, "journal", "no space left")), "blocked", "answers silence accounts", "journal",
        ("n1 does not ask", "as soon as the journal can be written", "tokens.journal"),
    ),
    "account of a silent provider": Scene(
        account(GONE, failing("refused", "no connection", 9 * S, 2 * S), silent(0, "refused")), "failing",
        "token unsent provider_silent", "retry", ("See the provider as a whole",),
    ),
    "provider away": Scene(
        away_facts(SHOP, "", 0, "no answer for 2 s", NOW_MS), "unknown", "store_away", "store_away",
        ("How shop is cannot be said",),
    ),
}  # fmt: skip


def story_of(facts: Facts) -> Story:
    if hasattr(facts, "reason"):
        return away_story(facts)
    return account_story(facts) if hasattr(facts, "account") else provider_story(facts)


def sentences(story: Story) -> list[str]:
    concluded = (one["text"] for one in story["concluded"])
    return [story["summary"], *concluded, story["next"]["text"], *story["advice"]]


@pytest.mark.parametrize("name", SCENES)
def test_a_story_says_what_is_known_and_no_more(name: str) -> None:
    scene, story = SCENES[name], story_of(SCENES[name].facts)
    assert story["state"] == scene.state
    assert [one["code"] for one in story["concluded"]] == scene.concluded.split()
    assert story["next"]["code"] == scene.next
    text = "\n".join(sentences(story))
    assert [words for words in scene.says if words not in text] == []
    assert [words for words in scene.never if words in text] == []
    for sentence in sentences(story):
        assert sentence.endswith("."), sentence
        assert not re.search(r"None|1970|\{|\}|  |\.\.|,\.", sentence), sentence
    numbers = [item for one in story["concluded"] for item in one.items()]
    times = [value for key, value in numbers if key.endswith("_ms")]
    for at_ms in (story["now_ms"], story["since_ms"], story["next"]["at_ms"], *times):
        assert at_ms < 10 * DAY or abs(at_ms - NOW_MS) < 10 * DAY, (
            "a length, or a time of these days"
        )
    at = [one["at_ms"] for one in story["asked"]]
    assert at == sorted(at), "the latest at the end"
    for width in (60, 80, 110):
        assert all(len(line) <= max(width, 90) for line in lines_of(story, width))
    _check_commands(text)
    if not hasattr(scene.facts, "account"):
        _check_figures(figures(scene.facts, 0), story)


def _check_figures(stands: dict[str, Any], story: Story) -> None:
    """``T.STATS`` says the same of a provider, of which a quarantine alone holds nothing up."""
    if story["state"] == "quarantined":
        assert (stands["state"], stands["quarantined_since_ms"]) == ("answers", story["since_ms"])
    else:
        assert (stands["state"], stands["since_ms"]) == (story["state"], story["since_ms"])
    troubled = stands["state"] != "answers"
    assert (bool(stands["error"]), bool(stands["advice"])) == (troubled, troubled)
    assert not stands["advice"] or f"{stands['advice']}." in story["advice"]


def _check_commands(text: str) -> None:
    """Every command that is advised is one."""
    for words in re.findall(r"`(?:tidewarden )?((?:token|status)[^`]*)`", text):
        found: Any = command_line(*VERBS)
        for name in (word for word in words.split() if re.fullmatch(r"[a-z]+", word)):
            if not hasattr(found, "commands"):
                break
            assert name in found.commands, words
            found = found.commands[name]


def test_every_row_of_the_table_has_its_scene() -> None:
    def about() -> Iterator[tuple[str, Facts]]:
        for facts in (scene.facts for scene in SCENES.values()):
            if hasattr(facts, "reason"):
                yield from (("away", facts), ("away next", facts))
                continue
            client = getattr(facts, "client", facts)
            yield from (("client", client), ("accounts", client), ("client next", client))
            yield from (("node", node) for node in client.quiet)
            if client is not facts:
                found = ("token", "account", "account next", *("doubt", "last") * facts.found)
                yield from ((section, facts) for section in found)

    met = {id(row) for section, facts in about() for row in told(section, facts)}
    rows = [(name, row) for name, (rows, _) in sections().items() for row in rows]
    assert [(name, row.code, row.condition) for name, row in rows if id(row) not in met] == []


def test_what_can_be_done_is_said_once() -> None:
    """Each node met with what all accounts wait for."""
    silences = {
        node: Silence(CLOCK_MS - 70 * S, CLOCK_MS - 3 * S, 0, "invalid_client", "HTTP 401")
        for node in ("n0", "n1")
    }
    story = provider_story(provider(msgspec.structs.replace(BAD_CLIENT, silences=silences)))
    assert len(story["advice"]) == len(set(story["advice"])) > 1


def test_who_waits_for_a_provider_is_asked_no_sooner_than_it() -> None:
    assert story_of(SCENES["held for client words"].facts)["next"]["at_ms"] == NOW_MS + 3000
    story = story_of(account(row(), None, seen(rest_ms=5_055_000)))
    assert story["next"]["code"] == "refresh", "nothing is due before that"


def test_a_probe_that_is_over_due_is_asked_now() -> None:
    found = msgspec.structs.replace(ERRING, until_ms=CLOCK_MS - 5000)
    assert story_of(provider(seen(hold=found)))["next"]["at_ms"] == NOW_MS
    longest_ms = throttle.pause_ms("erring", 9 + throttle.PROBES, 3 * MIN)
    assert f"another is asked {span(longest_ms / 1000)} later" in str(
        story_of(provider(seen(hold=found)))["next"]
    )


def test_refusals_are_counted_as_the_policy_does() -> None:
    for counted in range(failures.CONFIRMATIONS):
        found = story_of(account(row(), refused(counted, 120_000, 480_000)))["concluded"][1]
        assert (found["refusals"], found["needed"]) == (counted, failures.CONFIRMATIONS)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"), (0.4, "0 s"), (1, "1 s"), (59.6, "1 min"), (90, "1 min 30 s"), (3600, "1 h"),
        (3601, "1 h"), (3660, "1 h 1 min"), (86_400, "1 d"), (190_000, "2 d 4 h"),
        (400_000_000, "4629 d 15 h"), (-5, "0 s"),
    ],
)  # fmt: skip
def test_a_length_of_time(seconds: float, words: str) -> None:
    assert span(seconds) == words


def test_times_and_counts() -> None:
    assert when(NOW_MS + 120_000, NOW_MS) == "2026-11-18 11:08:40 UTC (in 2 min)"
    assert when(NOW_MS - 7_260_000, NOW_MS) == "2026-11-18 09:05:40 UTC (2 h 1 min ago)"
    assert when(NOW_MS + 400, NOW_MS) == "2026-11-18 11:06:40 UTC (now)"
    counts = [count(number, "account") for number in (0, 1, 2000)]
    assert counts == ["0 accounts", "1 account", "2,000 accounts"]
    assert count(2, "try") == "2 tries"
