"""
Accounts and clients in every situation that there is a story of, by name; shared by the stories'
tests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tidewarden.config.load import Provider
from tidewarden.tokens.accounts.account_record import AccountDetails, AccountRow, RefreshTroubles
from tidewarden.tokens.limits.client_record import ClientRecord, Hold, Quarantine, Rate
from tidewarden.tokens.limits.evidence import Bucket, Silence
from tidewarden.tokens.why.account import account_story, away_story
from tidewarden.tokens.why.provider import provider_story
from tidewarden.tokens.why.story import ClientSeen, Story
from tidewarden.tokens.why.troubles import Subject

NOW_MS = 1_795_000_000_000  # 2026-11-18 11:06:40 UTC
CLOCK_MS = 5_000_000
LAG_MS = NOW_MS - CLOCK_MS
S, MIN, HOUR, DAY = 1000, 60_000, 3_600_000, 86_400_000
SHOP = Provider(
    name="shop", token_url="https://auth.shop.example/token", client_id="c0", grace_s=0.0
)
WELL = [Bucket(CLOCK_MS - 9 * MIN, ok=480), Bucket(CLOCK_MS - 4 * S, ok=20)]


def seen(**fields: Any) -> ClientSeen:
    fields = {"buckets": WELL, "well_ms": CLOCK_MS - 2 * S} | fields
    return ClientSeen(ClientRecord(**fields), CLOCK_MS, LAG_MS)


def row(**fields: Any) -> AccountRow:
    base = AccountRow(
        1,
        4,
        NOW_MS - 10 * MIN,
        NOW_MS + 50 * MIN,
        NOW_MS + 45 * MIN,
        b"o" * 8,
        b"c" * 8,
        access=b"x",
        refreshed=True,
    )
    return replace(base, **fields)


def expired(**fields: Any) -> AccountRow:
    times = {
        "stored_ms": NOW_MS - 2 * HOUR,
        "expires_at_ms": NOW_MS - HOUR,
        "due_ms": NOW_MS - HOUR - 5 * MIN,
    }
    return row(**(times | fields))


def account(
    found: AccountRow | None = None,
    troubles: RefreshTroubles | None = None,
    client: ClientSeen | None = None,
    **settings: Any,
) -> Story:
    provider = replace(SHOP, **settings)
    return account_story(
        Subject(provider, "42", found or row(), troubles, client or seen(), NOW_MS)
    )


def failing(
    outcome: str, message: str, ago_ms: int, next_in_ms: int, tries: int = 1, **fields: Any
) -> RefreshTroubles:
    at_ms = NOW_MS - ago_ms
    return RefreshTroubles(
        tries=tries, outcome=outcome, message=message, first_ms=at_ms, last_ms=at_ms, next_ms=NOW_MS + next_in_ms,
        asked=((at_ms, outcome, message),), **fields,
    )  # fmt: skip


REFUSED = "HTTP 400 invalid_grant"


def refused(counted: int, ago_ms: int, next_in_ms: int, **fields: Any) -> RefreshTroubles:
    """Refused since ``ago_ms``, the last that counted a minute after that for each."""
    at_ms = NOW_MS - ago_ms
    return failing(
        "invalid_grant",
        REFUSED,
        ago_ms,
        next_in_ms,
        refusals=counted,
        refused_ms=at_ms,
        confirmed_ms=at_ms,
        **fields,
    )


HOLD = Hold(
    "client",
    CLOCK_MS - 3 * MIN,
    CLOCK_MS + 2 * S,
    40,
    "",
    0,
    "invalid_client",
    "HTTP 401 invalid_client",
    12,
    12,
)
ERRING = Hold(
    "erring", CLOCK_MS - 3 * MIN, CLOCK_MS + 9 * S, 9, "", 0, "unavailable", "HTTP 503", 10, 11
)
JUMPED = Quarantine(CLOCK_MS - 4 * MIN, 57, 0.62, 0.02, "invalid_grant", REFUSED)
BAD_CLIENT: dict[str, Any] = {
    "buckets": [Bucket(CLOCK_MS - 8 * MIN, ok=400), Bucket(CLOCK_MS - 3 * MIN, others=52, client=12)],
    "hold": HOLD, "well_ms": CLOCK_MS - 3 * MIN - 10 * S,
}  # fmt: skip
REFUSING: dict[str, Any] = {
    "buckets": [Bucket(CLOCK_MS - 8 * MIN, ok=35), Bucket(CLOCK_MS - 4 * MIN, others=57, refused=57)],
    "quarantine": JUMPED, "well_ms": CLOCK_MS - 4 * MIN,
}  # fmt: skip
COUNTS = {
    "total": 2000,
    "fresh": 1880,
    "expiring": 20,
    "late": 0,
    "failing": 93,
    "stopped": 4,
    "dead": 3,
    "lost_rotation": 0,
}


def provider(client: ClientSeen, counts: dict[str, int] | None = None, **settings: Any) -> Story:
    return provider_story(replace(SHOP, **settings), client, COUNTS if counts is None else counts)


SCENES: dict[str, Callable[[], Story]] = {
    # --- accounts
    "healthy": lambda: account(),
    "healthy, never refreshed": lambda: account(row(refreshed=False)),
    "no access token yet": lambda: account(
        row(refreshed=False, access=b"", expires_at_ms=0, due_ms=NOW_MS - S)
    ),
    "late": lambda: account(expired()),
    "late while held": lambda: account(expired(), client=seen(**BAD_CLIENT)),
    "first refusal": lambda: account(troubles=refused(1, 2 * MIN, 8 * MIN)),
    "second refusal": lambda: account(expired(), refused(2, 12 * MIN, 48 * MIN)),
    "refused, nobody else well": lambda: account(
        expired(), refused(3, 90 * MIN, 30 * MIN), seen(well_ms=CLOCK_MS - 3 * HOUR, buckets=[])
    ),
    "third refusal due": lambda: account(expired(), refused(2, 62 * MIN, -2 * S)),
    "quarantined": lambda: account(expired(), refused(0, 2 * MIN, 40 * MIN), seen(**REFUSING)),
    "released": lambda: account(
        expired(), refused(1, 20 * MIN, 4 * S), seen(released_ms=CLOCK_MS - 10 * S)
    ),
    "held for client words": lambda: account(
        expired(),
        failing("invalid_client", "HTTP 401 invalid_client", 170 * S, 3 * S, tries=0),
        seen(**BAD_CLIENT),
    ),
    "held for 5xx": lambda: account(
        expired(), failing("unavailable", "HTTP 503", 170 * S, 5 * S, tries=0), seen(hold=ERRING)
    ),
    "resting": lambda: account(
        row(due_ms=NOW_MS - S),
        None,
        seen(
            rest_ms=CLOCK_MS + 55 * S,
            rest_brief="HTTP 429",
            buckets=[Bucket(CLOCK_MS - 5 * S, limited=40)],
        ),
    ),
    "its own 5xx": lambda: account(
        expired(stored_ms=NOW_MS - 5 * HOUR),
        failing("unavailable", "HTTP 500", 4 * HOUR, 2 * HOUR, 13, own_ms=3 * HOUR),
    ),
    "isolated 429": lambda: account(
        row(due_ms=NOW_MS - MIN),
        failing("rate_limited", "HTTP 429", 10 * S, 50 * S),
        seen(buckets=[Bucket(CLOCK_MS - 20 * S, ok=480, limited=3)]),
    ),
    "429 for many": lambda: account(
        row(due_ms=NOW_MS - MIN),
        failing("rate_limited", "HTTP 429", 10 * S, 4 * S),
        seen(rate=Rate(12.5, 13.9, CLOCK_MS - 4 * S)),
    ),
    "account limited": lambda: account(
        troubles=failing("account_limited", "HTTP 429 slow", 10 * S, 30 * S)
    ),
    "unknown within grace": lambda: account(
        expired(),
        failing("unknown", "HTTP 504", 5 * S, 2 * S, doubts=1, doubt_ms=NOW_MS - 5 * S),
        grace_s=60,
    ),
    "unknown after grace": lambda: account(
        expired(),
        failing("unknown", "HTTP 504", 90 * S, 30 * S, doubts=2, doubt_ms=NOW_MS - 90 * S),
        grace_s=60,
    ),
    "unknown, tokens do not rotate": lambda: account(
        expired(),
        failing(
            "unknown", "no answer within 30 s", 5 * S, 2 * S, doubts=1, doubt_ms=NOW_MS - 5 * S
        ),
        rotation="none",
    ),
    "unknown, no grace": lambda: account(
        expired(), failing("unknown", "HTTP 504", 5 * S, 2 * S, doubts=1, doubt_ms=NOW_MS - 5 * S)
    ),
    "holder away": lambda: account(
        row(due_ms=NOW_MS - S),
        RefreshTroubles(
            outcome="unknown",
            message="n1 may hold the answer and does not say; it is asked again",
            doubts=1,
            doubt_ms=NOW_MS - 40 * S,
            first_ms=NOW_MS - 20 * S,
            last_ms=NOW_MS - 20 * S,
            next_ms=NOW_MS + 10 * S,
            holder="n1.7",
        ),
    ),
    "refused after a doubt": lambda: account(
        expired(), refused(1, 3 * MIN, 7 * MIN, doubts=1, doubt_ms=NOW_MS - 4 * MIN)
    ),
    "unsealable": lambda: account(
        expired(), failing("unsealable", "no key k7 here", 3 * MIN, 5 * MIN, 8)
    ),
    "odd word": lambda: account(
        expired(), replace_outcome(refused(1, 2 * MIN, 8 * MIN), "rejected", "HTTP 400 E1013")
    ),
    "kept answer": lambda: account(
        expired(),
        failing(
            "unknown",
            "HTTP 200 without an access_token",
            5 * S,
            2 * S,
            doubts=1,
            doubt_ms=NOW_MS - 5 * S,
            kept="n2",
        ),
    ),
    "not sent": lambda: account(
        expired(), failing("refused", "no connection: Connection refused", 40 * S, 9 * S, 4)
    ),
    "stopped": lambda: account(
        expired(
            stored_ms=NOW_MS - 6 * DAY, expires_at_ms=NOW_MS - 5 * DAY, due_ms=NOW_MS - 5 * DAY
        ),
        failing("unavailable", "HTTP 500", 5 * DAY, 0, 44, stopped=True, own_ms=4 * DAY + HOUR),
    ),
    "dead": lambda: account(expired(), replace_last(refused(3, 70 * MIN, 0, dead=True), 10 * MIN)),
    "dead after a release": lambda: account(
        expired(),
        replace_last(refused(1, 10 * MIN, 0, dead=True), 10 * MIN),
        seen(released_ms=CLOCK_MS - 11 * MIN),
    ),
    "lost rotation": lambda: account(
        expired(stored_ms=NOW_MS - 3 * HOUR),
        RefreshTroubles(
            tries=4,
            refusals=3,
            doubts=1,
            doubt_ms=NOW_MS - 2 * HOUR,
            dead=True,
            outcome="lost_rotation",
            message=(
                "an earlier refresh was processed but its answer never arrived; consent is needed"
                " anew"
            ),
            first_ms=NOW_MS - 2 * HOUR,
            last_ms=NOW_MS - HOUR,
            refused_ms=NOW_MS - 2 * HOUR + 10 * S,
            asked=(
                (NOW_MS - 2 * HOUR, "unknown", "HTTP 504"),
                (NOW_MS - HOUR, "invalid_grant", REFUSED),
            ),
        ),
    ),
    "account interval": lambda: account(row(due_ms=NOW_MS - S), account_interval_s=900.0),
    "not before": lambda: account(row(due_ms=NOW_MS - S), not_before_s=600.0),
    "consent ends": lambda: account(
        row(details=AccountDetails(consent_expires_ms=NOW_MS + 6 * DAY, consent_end="fixed"))
    ),
    "consent moves": lambda: account(
        row(details=AccountDetails(consent_expires_ms=NOW_MS + 6 * DAY, consent_end="moves"))
    ),
    "a service account": lambda: account(
        expired(),
        replace_last(refused(3, 70 * MIN, 0, dead=True), 10 * MIN),
        grant="client_credentials",
        rotation="none",
    ),
    "unreadable troubles": lambda: account(
        troubles=RefreshTroubles(
            outcome="unreadable", message="what its refreshes met with cannot be read"
        )
    ),
    "store away": lambda: away_story(SHOP, "42", 50 * MIN, "no answer for 2 s", NOW_MS),
    "store away, nothing known": lambda: away_story(SHOP, "42", 0, "no answer for 2 s", NOW_MS),
    # --- providers
    "provider well": lambda: provider(seen()),
    "provider new": lambda: provider(ClientSeen(ClientRecord(), CLOCK_MS, LAG_MS), {"total": 0}),
    "provider refuses our client": lambda: provider(seen(**BAD_CLIENT)),
    "provider errs": lambda: provider(seen(hold=ERRING)),
    "provider probed": lambda: provider(
        seen(hold=replace_hold(ERRING, claim="n1", claim_ms=CLOCK_MS + 20 * S))
    ),
    "provider rests": lambda: provider(
        seen(
            rest_ms=CLOCK_MS + 55 * S,
            rest_brief="HTTP 429",
            buckets=[Bucket(CLOCK_MS - 5 * S, limited=40)],
        )
    ),
    "provider rate": lambda: provider(
        seen(
            rate=Rate(12.5, 13.9, CLOCK_MS - 4 * S),
            buckets=[Bucket(CLOCK_MS - 20 * S, ok=480, limited=90)],
        )
    ),
    "provider isolated 429": lambda: provider(
        seen(buckets=[Bucket(CLOCK_MS - 20 * S, ok=480, limited=3)])
    ),
    "provider client_rate": lambda: provider(seen(), client_rate=10.0),
    "provider quarantined": lambda: provider(seen(**REFUSING)),
    "provider quarantined, sampled": lambda: provider(
        seen(
            **(
                REFUSING
                | {
                    "quarantine": Quarantine(
                        CLOCK_MS - 4 * MIN, 57, 0.62, 0.02, "invalid_grant", REFUSED, False, 1, 7
                    )
                }
            )
        )
    ),
    "provider quarantined by an operator": lambda: provider(
        seen(quarantine=Quarantine(CLOCK_MS - HOUR, usual_share=0.02, by_operator=True))
    ),
    "provider quarantined for errors": lambda: provider(
        seen(
            quarantine=Quarantine(
                CLOCK_MS - 4 * MIN, 57, 0.3, 0.02, "unavailable", "HTTP 500", kind="erring"
            )
        )
    ),
    "provider quarantine ending": lambda: provider(
        seen(
            quarantine=Quarantine(
                CLOCK_MS - 20 * MIN,
                57,
                0.62,
                0.02,
                "invalid_grant",
                REFUSED,
                False,
                3,
                4,
                "refused",
                CLOCK_MS - 4 * MIN,
            )
        )
    ),
    "provider held and quarantined": lambda: provider(
        seen(**(BAD_CLIENT | {"quarantine": JUMPED}))
    ),
    "provider released": lambda: provider(
        seen(released_ms=CLOCK_MS - 5 * MIN, rouse_ms=CLOCK_MS - 5 * MIN)
    ),
    "provider silent": lambda: provider(
        seen(
            silences={
                "n1": Silence(
                    CLOCK_MS - 70 * S,
                    CLOCK_MS - 3 * S,
                    CLOCK_MS + 8 * S,
                    "refused",
                    "refused",
                    True,
                )
            }
        )
    ),
    "provider silent, tried as accounts fall due": lambda: provider(
        seen(
            silences={
                "n1": Silence(
                    CLOCK_MS - 70 * S, CLOCK_MS - 3 * S, 0, "refused", "no connection", True
                )
            }
        )
    ),
    "provider away": lambda: away_story(SHOP, "", 0, "no answer for 2 s", NOW_MS),
}


def replace_outcome(troubles: RefreshTroubles, outcome: str, message: str) -> RefreshTroubles:
    troubles.outcome, troubles.message = outcome, message
    troubles.asked = tuple((at_ms, outcome, message) for at_ms, _, _ in troubles.asked)
    return troubles


def replace_last(troubles: RefreshTroubles, ago_ms: int) -> RefreshTroubles:
    troubles.last_ms = troubles.confirmed_ms = NOW_MS - ago_ms
    troubles.asked = (*troubles.asked, (NOW_MS - ago_ms, troubles.outcome, troubles.message))
    troubles.next_ms = 0
    return troubles


def replace_hold(found: Hold, **fields: Any) -> Hold:
    import msgspec

    return msgspec.structs.replace(found, **fields)


__all__ = ["NOW_MS", "SCENES", "Story", "account", "refused", "seen"]
