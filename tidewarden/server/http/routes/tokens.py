"""
Serves tokens, accounts and providers.

A secret is in no error text, and in no cache but the caller's own.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, UnsetType

from tidewarden.config.rights import ACCOUNT_LOOK, ALL, Rights
from tidewarden.errors import (
    BadArg,
    Denied,
    Error,
    NotFound,
    Timeout,
)
from tidewarden.queue.task import TIME_MAX_MS
from tidewarden.server.http.caller import USER
from tidewarden.server.http.long_polls import LongPolls
from tidewarden.server.http.params import NoOptions, body_of, check_path, parameters_of
from tidewarden.server.http.responses import respond
from tidewarden.server.http.route import STORE, Route, whole
from tidewarden.server.http.task_fields import StaleMs
from tidewarden.server.verbs.token import (
    Note,
    account_name,
    fields_of,
    no_reader,
    provider_name,
    read_many,
    seen_stats,
    steered,
)
from tidewarden.tokens import AccountToken, Tokens
from tidewarden.tokens.accounts.names import GrantFields
from tidewarden.tokens.tokens import GENERATION_MAX

COUNT = 100
LIST_MAX = 1000
SECONDS_MAX = TIME_MAX_MS // 1000
BATCH_MAX = 1000


AccountName: TypeAlias = Annotated[
    str, Meta(description="`provider/account`.", examples=["shop/ada@example.com"])
]
UnixMsOrNone: TypeAlias = Annotated[
    int,
    Meta(description="Unix time in milliseconds; 0: none.", examples=[1_795_258_800_000]),
]
AccountState: TypeAlias = Annotated[
    Literal["fresh", "expiring", "late", "failing", "stopped", "dead", "lost_rotation"],
    Meta(
        description="`fresh`: no refresh is due; `expiring`: one is; `late`: overdue; `failing`:"
        " the last try failed; `stopped`: failed for too long, not tried by itself; `dead`: the"
        " provider refuses it; `lost_rotation`: its new refresh token was in an answer that never"
        " came."
    ),
]
TokenState: TypeAlias = Annotated[
    Literal["fresh", "expiring", "late", "failing", "stopped", "dead", "lost_rotation", "stale"],
    Meta(description="As of the account; `stale`: the store is away, and this is what is known."),
]
Generation: TypeAlias = Annotated[
    int, Meta(description="How often the account got a new pair of tokens.", examples=[7])
]
Grant: TypeAlias = Annotated[
    int, Meta(description="The number of its consent: a new one is a new grant.", examples=[1])
]
Extras: TypeAlias = Annotated[
    dict[str, str | int | float | bool],
    Meta(
        description="What else its provider said and is kept.",
        examples=[{"instance_url": "https://shop.example"}],
    ),
]
AccessToken: TypeAlias = Annotated[
    str, Meta(description="A secret: it is kept in no cache but yours.", examples=["at-77d0"])
]
TokenType: TypeAlias = Annotated[str, Meta(examples=["Bearer"])]
Class: TypeAlias = Annotated[
    str,
    Meta(
        description="The class of what went wrong, as in docs/providers.md; empty: nothing.",
        examples=["invalid_grant"],
    ),
]
Message: TypeAlias = Annotated[
    str, Meta(description="The same for people.", examples=["HTTP 400 invalid_grant"])
]
Advice: TypeAlias = Annotated[
    str, Meta(description="What a person can do; empty: nothing need be done.", examples=[""])
]


class Token(msgspec.Struct, kw_only=True):
    """Holds an access token."""

    access_token: AccessToken
    token_type: TokenType
    expires_at_ms: UnixMsOrNone
    generation: Generation
    state: TokenState
    extras: Extras


class ReadToken(msgspec.Struct, kw_only=True):
    """
    Holds one of several access tokens that were asked for, or why there is none.

    There are ``error`` and ``message``, or all the others.
    """

    account: AccountName
    access_token: AccessToken | UnsetType = UNSET
    token_type: TokenType | UnsetType = UNSET
    expires_at_ms: UnixMsOrNone | UnsetType = UNSET
    generation: Generation | UnsetType = UNSET
    state: TokenState | UnsetType = UNSET
    extras: Extras | UnsetType = UNSET
    keep_ms: (
        Annotated[
            int,
            Meta(
                description="How long it may be used without asking again, in milliseconds.",
                examples=[1_740_000],
            ),
        ]
        | UnsetType
    ) = UNSET
    error: Annotated[str, Meta(description="As of `Error`.")] | UnsetType = UNSET
    message: str | UnsetType = UNSET


class ReadTokens(msgspec.Struct):
    """Holds access tokens, or why there are none, in the order of the request."""

    tokens: list[ReadToken]


class TokenOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says what a token has to be."""

    min_ttl: Annotated[
        float,
        Meta(ge=0, le=SECONDS_MAX, description="Seconds that it must have left.", examples=[60]),
    ] = 0
    wait: Annotated[
        float,
        Meta(
            ge=0,
            le=SECONDS_MAX,
            description="Seconds that its refresh is waited for; at most limits.wait_ms.",
            examples=[5],
        ),
    ] = 0
    max_stale: Annotated[
        float,
        Meta(
            ge=0,
            le=SECONDS_MAX,
            description="It may be what was stored so many seconds ago, and come from the node's"
            " own copy.",
            examples=[1],
        ),
    ] = 0

    def in_ms(self) -> dict[str, int]:
        """Return the times as the tokens take them."""
        return {
            "min_ttl_ms": round(self.min_ttl * 1000),
            "wait_ms": round(self.wait * 1000),
            "max_stale_ms": round(self.max_stale * 1000),
        }


class OneTokenOptions(TokenOptions, forbid_unknown_fields=True, kw_only=True):
    """Says what a single token has to be."""

    newer: Annotated[
        int,
        Meta(
            ge=0,
            le=GENERATION_MAX,
            description="The generation of a token that does not work: only a later one will do.",
            examples=[7],
        ),
    ] = 0


class TokenHeaders(msgspec.Struct, kw_only=True):
    """Names the token that the reader has."""

    if_none_match: Annotated[
        str,
        Meta(
            description="The `ETag` of the token that the reader has: it is not sent again.",
            examples=['"1.7.fresh"'],
        ),
    ] = msgspec.field(name="If-None-Match", default="")


class ReadAccounts(TokenOptions, forbid_unknown_fields=True, kw_only=True):
    """Says whose tokens are read, and what they have to be."""

    accounts: Annotated[
        list[AccountName],
        Meta(min_length=1, description="At most limits.batch_max, which is 1000."),
    ]


class PutOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says how an account is put."""

    keep: Annotated[
        bool, Meta(description="An account that is there and not dead stays as it is.")
    ] = False


class AccountPut(msgspec.Struct):
    """Says what came of a put."""

    generation: Generation
    change: Annotated[
        Literal["new", "renewed", "same"],
        Meta(
            description="`new`: there was no such account; `renewed`: it has another grant now;"
            " `same`: nothing was stored."
        ),
    ]
    state: AccountState


class ConnectAsked(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says what a person is asked to consent to, and where the browser goes afterwards."""

    return_to: Annotated[
        str,
        Meta(
            description="Where the browser is sent in the end, one of connect.return_to; empty: it"
            " is shown a page.",
            examples=["https://app.example.com/connected"],
        ),
    ] = ""
    scope: Annotated[
        str, Meta(description="Empty: the provider's consent_scope.", examples=["read write"])
    ] = ""
    parameters: Annotated[
        dict[str, str] | None,
        Meta(description="For the provider's placeholders; null: those that the account has."),
    ] = None


class DeviceAsked(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says what a person is asked to consent to on another device."""

    scope: Annotated[
        str, Meta(description="Empty: the provider's consent_scope.", examples=["read write"])
    ] = ""
    parameters: Annotated[
        dict[str, str] | None,
        Meta(description="For the provider's placeholders; null: those that the account has."),
    ] = None


class DeviceCodes(msgspec.Struct):
    """Says where a person consents on another device, and with which code."""

    user_code: Annotated[str, Meta(examples=["WDJB-MJHT"])]
    verification_uri: Annotated[
        str, Meta(description="Where it is typed in.", examples=["https://shop.example/device"])
    ]
    verification_uri_complete: Annotated[
        str, Meta(description="The same with the code in it; empty: there is none.")
    ]
    until_ms: Annotated[int, Meta(description="When they expire, Unix milliseconds.")]


class ConnectAddress(msgspec.Struct):
    """Holds a link by which a person may consent."""

    url: Annotated[
        str, Meta(description="For one person alone: whoever opens it may connect the account.")
    ]
    until_ms: Annotated[int, Meta(description="When it expires, Unix milliseconds.")]


class AccountDeleted(msgspec.Struct):
    """Says that the account is gone."""

    deleted: bool = True


class RefreshOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says which token is refreshed."""

    generation: Annotated[
        int,
        Meta(
            ge=0,
            le=GENERATION_MAX,
            description="Of the token that does not work: an account that has another is left"
            " alone; 0: whichever.",
            examples=[7],
        ),
    ] = 0


class RefreshAsked(msgspec.Struct):
    """Says what becomes of a refresh that was asked for."""

    refresh: Annotated[
        Literal["queued", "leased", "recent", "moved"],
        Meta(
            description="`leased`: somebody is at it; `recent`: that was done less than five"
            " seconds ago and is done again when these are over; `moved`: the generation is"
            " another."
        ),
    ]


class ListOptions(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Says which accounts are listed."""

    provider: Annotated[
        str, Meta(description="Of this provider alone; empty: of all.", examples=["shop"])
    ] = ""
    state: Annotated[
        str,
        Meta(
            description="In this state alone. A page may then be short, or empty, before the end.",
            examples=["dead"],
        ),
    ] = ""
    count: Annotated[int, Meta(ge=1, le=LIST_MAX, description="How many at most.")] = COUNT
    after: Annotated[
        str, Meta(description="`after` of the page before; empty: from the beginning.")
    ] = ""


class Account(msgspec.Struct, kw_only=True):
    """Shows how an account is, without its tokens."""

    account: AccountName
    provider: Annotated[str, Meta(examples=["shop"])]
    state: AccountState
    since_ms: UnixMsOrNone
    grant: Grant
    generation: Generation
    stored_ms: UnixMsOrNone
    expires_at_ms: UnixMsOrNone
    due_ms: UnixMsOrNone
    consent_expires_ms: UnixMsOrNone
    parameters: Annotated[dict[str, str], Meta(description="For the provider's placeholders.")]
    tries: Annotated[int, Meta(description="That failed since the last good refresh.")]
    error: Class
    message: Message
    next_ms: UnixMsOrNone
    advice: Advice
    stale_ms: StaleMs | UnsetType = UNSET


class WholeAccount(Account, kw_only=True):
    """Shows how an account is, and more of it, without its tokens."""

    token_type: TokenType
    scope: Annotated[str, Meta(examples=["read write"])]
    extras: Extras
    consent_moves: Annotated[
        bool, Meta(description="Whether each refresh puts off the end of its consent.")
    ]
    access_token: Annotated[bool, Meta(description="Whether it has one.")]
    refreshed: Annotated[bool, Meta(description="Whether its pair came from a refresh.")]


class AccountPage(msgspec.Struct):
    """Holds a page of accounts, in no order."""

    accounts: list[Account]
    after: Annotated[str, Meta(description="For the next page; empty: there is none.")]


class Answered(msgspec.Struct):
    """Says what was answered to one request."""

    at_ms: UnixMsOrNone
    outcome: Class
    brief: Message


class Finding(msgspec.Struct):
    """Says what was concluded, and beside it the figures that docs/protocol.md lists by code."""

    code: Annotated[str, Meta(examples=["token"])]
    text: Annotated[str, Meta(description="For people.")]


class NextStep(msgspec.Struct):
    """Says what happens next if nobody does anything."""

    code: Annotated[str, Meta(examples=["refresh"])]
    text: Annotated[str, Meta(description="For people.")]
    at_ms: UnixMsOrNone


class Story(msgspec.Struct):
    """Tells why an account, or a provider as a whole, is as it is."""

    name: Annotated[
        str, Meta(description="Of the account or provider.", examples=["shop/ada@example.com"])
    ]
    state: Annotated[
        str,
        Meta(
            description="As of the account or the provider; `unknown`: the store does not answer;"
            " of a provider also `quarantined` or `held`.",
            examples=["fresh"],
        ),
    ]
    since_ms: UnixMsOrNone
    now_ms: UnixMsOrNone
    summary: Annotated[str, Meta(description="One sentence.")]
    asked: Annotated[list[Answered], Meta(description="The latest at the end.")]
    concluded: list[Finding]
    next: NextStep
    advice: Annotated[list[str], Meta(description="Sentences; none: nothing need be done.")]
    stale_ms: StaleMs | UnsetType = UNSET


class UnreadableAnswer(msgspec.Struct, kw_only=True):
    """Shows a successful answer of a provider that could not be read; it may hold a token."""

    node: Annotated[str, Meta(description="Which keeps it.", examples=["n1"])]
    at_ms: UnixMsOrNone
    grant: Grant
    generation: Generation
    current: Annotated[bool, Meta(description="Whether nothing was stored since its request.")]
    body: Annotated[str, Meta(examples=["<p>OK</p>"])] | UnsetType = UNSET
    body_base64: Annotated[bytes, Meta(description="Where it is no UTF-8.")] | UnsetType = UNSET


class UnreadableAnswers(msgspec.Struct):
    """Shows what was answered for an account and could not be read, the newest first."""

    answers: list[UnreadableAnswer]
    silent: Annotated[list[str], Meta(description="Nodes that could not be asked.")]


class Provider(msgspec.Struct, kw_only=True):
    """Shows a provider: its accounts by state, and how it stands with us."""

    provider: Annotated[str, Meta(examples=["shop"])]
    grant: Annotated[
        str,
        Meta(
            description="How its tokens are got, as RFC 6749 names it.", examples=["refresh_token"]
        ),
    ]
    total: Annotated[int, Meta(description="Of accounts.", examples=[2000])]
    fresh: int
    expiring: int
    late: int
    failing: int
    stopped: int
    dead: int
    lost_rotation: int
    intents: Annotated[int, Meta(description="Requests that are under way, or were.")]
    spares: Annotated[int, Meta(description="Former pairs that are kept aside.")]
    consents_1d: Annotated[int, Meta(description="Consents that end within a day.")]
    consents_7d: Annotated[int, Meta(description="Within seven.")]
    consents_30d: Annotated[int, Meta(description="Within thirty.")]
    state: Annotated[
        str,
        Meta(
            description="`answers`; `silent`: it does not answer; `erring`: with errors of its own;"
            " `limiting`: it wants fewer requests; `refusing`: it refuses our client;"
            " `blocked`: nodes do not ask it, for their journals cannot be written.",
            examples=["answers"],
        ),
    ]
    since_ms: UnixMsOrNone
    next_ms: UnixMsOrNone
    error: Class
    message: Message
    nodes: Annotated[list[str], Meta(description="That see this.")]
    well_ms: Annotated[int, Meta(description="When one of its accounts was last refreshed well.")]
    quarantined_since_ms: UnixMsOrNone
    held_until_ms: UnixMsOrNone
    failures: Annotated[int, Meta(description="Probes that failed in a row, while all wait.")]
    advice: Advice
    stale_ms: StaleMs | UnsetType = UNSET


class ProviderList(msgspec.Struct):
    """Shows every provider."""

    providers: list[Provider]


def _everything(request: web.Request) -> Rights:
    return ALL


def _unnoted(request: web.Request, name: str) -> Denied:
    return no_reader(request.path, name, "")


def _no_reader(request: web.Request) -> Note | None:
    return None


class TokenRoutes:
    """
    Answers ``/v1/tokens``, ``/v1/accounts`` and ``/v1/providers``.

    An account's name stands in the path, its own ``/`` as it is or as ``%2F``.

    Args:
        tokens: those of the node.
        batch_max: so many accounts may be read at once.
        polls: bounds the requests that wait.
        rights: those of the caller.
        deny: notes and returns the error for one account among others, whose token the caller may
            not read.
        reader: what is told each account whose token is read; None: nothing is.
    """

    def __init__(
        self,
        tokens: Tokens,
        polls: LongPolls,
        batch_max: int = BATCH_MAX,
        rights: Callable[[web.Request], Rights] = _everything,
        deny: Callable[[web.Request, str], Denied] = _unnoted,
        reader: Callable[[web.Request], Note | None] = _no_reader,
    ) -> None:
        self._tokens = tokens
        self._polls = polls
        self._batch_max = batch_max
        self._rights = rights
        self._deny = deny
        self._reader = reader

    async def get(self, request: web.Request) -> web.Response:
        """
        Return an access token with at least ``min_ttl`` seconds left.

        It is waited for at most ``wait`` seconds, and of a later generation than ``newer``; 304:
        the client has it already. It may be what was stored ``max_stale`` seconds ago.

        ``Cache-Control`` tells how long it may be used without asking again.
        """
        asked = parameters_of(request, OneTokenOptions)
        times = asked.in_ms()
        with self._polls.of(request, times["wait_ms"]):
            token = await self._tokens.get(_account(request), newer=asked.newer, **times)
        headers = {
            "Cache-Control": f"private, max-age={token.keep_ms // 1000}",
            "ETag": f'"{token.grant}.{token.generation}.{token.state}"',
            "Vary": "Authorization",
        }
        if headers["ETag"] in _etags(request.headers.get("If-None-Match", "")):
            return web.Response(status=304, headers=headers)
        return respond(_shown(token), headers=headers)

    async def read(self, request: web.Request) -> web.Response:
        """
        Return many access tokens, each with its token or its error.

        The body is ``{"accounts": […], "min_ttl": s, "wait": s, "max_stale": s}``.
        """
        asked = await body_of(request, ReadAccounts)
        if (many := len(asked.accounts)) > self._batch_max:
            raise BadArg(
                f"accounts has {many} names; allowed are {self._batch_max} (limits.batch_max)."
            )
        accounts = [account_name(name.encode("utf-8", "surrogatepass")) for name in asked.accounts]
        times = asked.in_ms()
        with self._polls.of(request, times["wait_ms"]):
            found = await read_many(
                self._tokens,
                accounts,
                self._rights(request),
                lambda name: self._deny(request, name),
                self._reader(request),
                **times,
            )
        return respond(
            {
                "tokens": [
                    (
                        {"account": name, "error": one.code, "message": one.http_message}
                        if isinstance(one, Error)
                        else {"account": name, **_shown(one), "keep_ms": one.keep_ms}
                    )
                    for name, one in zip(accounts, found, strict=True)
                ]
            }
        )

    async def put(self, request: web.Request) -> web.Response:
        """
        Store an account, or a new consent of one.

        With ``keep`` an existing account that is not dead stays as it is.
        """
        keep = parameters_of(request, PutOptions).keep
        put = await whole(
            self._tokens.put_told(_account(request), fields_of(await request.read()), keep=keep)
        )
        return respond({"generation": put.generation, "change": put.change, "state": put.state})

    async def connect(self, request: web.Request) -> web.Response:
        """Make a link by which a person consents in a browser, so that the account is put."""
        asked = await body_of(request, ConnectAsked)
        link = await self._tokens.connecting.link(
            _account(request), asked.return_to, asked.scope, asked.parameters, request.get(USER, "")
        )
        return respond({"url": link.url, "until_ms": link.until_ms})

    async def connect_device(self, request: web.Request) -> web.Response:
        """
        Ask the provider for a code by which a person consents on another device.

        The account is put when the person has; the event `account.connected` tells.
        """
        asked = await body_of(request, DeviceAsked)
        codes = await self._tokens.devices.start(
            _account(request), asked.scope, asked.parameters, request.get(USER, "")
        )
        return respond(dataclasses.asdict(codes))

    async def peek(self, request: web.Request) -> web.Response:
        """Show how an account is, why, since when, and what can be done; no token."""
        return respond(await self._tokens.peek(_account(request)))

    async def why_account(self, request: web.Request) -> web.Response:
        """Tell why an account is as it is, what comes next, and what can be done."""
        parameters_of(request, NoOptions)
        return respond(await self._tokens.why(_account(request)))

    async def why_provider(self, request: web.Request) -> web.Response:
        """Tell why a provider is as it is, what comes next, and what can be done."""
        parameters_of(request, NoOptions)
        return respond(await self._tokens.why(provider_of(request)))

    async def release_provider(self, request: web.Request) -> web.Response:
        """
        End whatever holds a provider's accounts back, and answer its story from then on.

        Failing accounts are retried. After a quarantine, the next refusal of an account is enough
        to give it up.
        """
        return await self._steered(request, "release")

    async def probe_provider(self, request: web.Request) -> web.Response:
        """Ask a provider about one account at once, in spite of a hold, and answer its story."""
        return await self._steered(request, "probe")

    async def quarantine_provider(self, request: web.Request) -> web.Response:
        """Give up no account of a provider until its release, and answer its story."""
        return await self._steered(request, "quarantine")

    async def _steered(self, request: web.Request, action: str) -> web.Response:
        parameters_of(request, NoOptions)
        return respond(await whole(steered(self._tokens, action, provider_of(request))))

    async def answers(self, request: web.Request) -> web.Response:
        """
        Return the unreadable successful answers of an account's provider.

        ``body`` is text, or ``body_base64`` if it is none.
        """
        found = await self._tokens.custody.answers(_account(request))
        return respond({**found, "answers": [_told(one) for one in found["answers"]]})

    async def providers(self, request: web.Request) -> web.Response:
        """Return each provider: its accounts by state, and how it stands with us."""
        parameters_of(request, NoOptions)
        found = await seen_stats(self._tokens, self._rights(request))
        return respond(
            {"providers": [{"provider": name, **figures} for name, figures in found.items()]}
        )

    async def delete(self, request: web.Request) -> web.Response:
        """Forget an account."""
        account = _account(request)
        if not await whole(self._tokens.delete(account)):
            raise NotFound(f"There is no account {account}.")
        return respond({"deleted": True})

    async def refresh(self, request: web.Request) -> web.Response:
        """
        Have an account refreshed now, if its ``generation`` is still that, without waiting for it.

        Answers ``queued``, ``leased`` (somebody is at it), ``recent`` (done a moment ago, and again
        when five seconds are over), or ``moved`` (it has another).
        """
        generation = parameters_of(request, RefreshOptions).generation
        return respond({"refresh": await self._tokens.refresh(_account(request), generation)}, 202)

    async def list(self, request: web.Request) -> web.Response:
        """Return a page of accounts, without their tokens."""
        asked = parameters_of(request, ListOptions)
        accounts, after = await self._tokens.list(
            asked.provider,
            asked.state.lower(),
            asked.count,
            asked.after,
            self._rights(request).accounts(*ACCOUNT_LOOK),
        )
        return respond({"accounts": accounts, "after": after})


def _shown(token: AccountToken) -> dict[str, Any]:
    return {
        "access_token": token.access_token,
        "token_type": token.token_type,
        "expires_at_ms": token.expires_at_ms,
        "generation": token.generation,
        "state": token.state,
        "extras": dict(token.extras),
    }


def _told(answer: dict[str, Any]) -> dict[str, Any]:
    body: bytes = answer["body"]
    try:
        return answer | {"body": body.decode()}
    except UnicodeDecodeError:
        rest = {name: value for name, value in answer.items() if name != "body"}
        return rest | {"body_base64": base64.b64encode(body).decode()}


def _etags(header: str) -> list[str]:
    """Return the entity tags of If-None-Match, compared weakly (RFC 9110, 13.1.2)."""
    return [tag.strip().removeprefix("W/") for tag in header.split(",")]


def _account(request: web.Request) -> str:
    check_path(request)
    name = f"{request.match_info['provider']}/{request.match_info['account']}"
    return account_name(name.encode("utf-8", "surrogateescape"))


def provider_of(request: web.Request) -> str:
    """Return the provider that the path names. Raises: BadArg: it is no name."""
    check_path(request)
    return provider_name(request.match_info["provider"].encode("utf-8", "surrogateescape"))


ACCOUNT = "/{provider}/{account}"
OF_ONE = (NotFound, *STORE)
KEPT = (
    ("Cache-Control", "How long the token may be used without asking again: `private, max-age`."),
    ("ETag", "Changes with grant, generation and state."),
    ("Vary", "`Authorization`"),
)
ROUTES = (
    Route(
        "GET",
        "/v1/tokens",
        "T.LIST",
        TokenRoutes.list,
        query=ListOptions,
        answer=AccountPage,
        errors=OF_ONE,
    ),
    Route(
        "POST",
        "/v1/tokens:read",
        "T.MGET",
        TokenRoutes.read,
        reads=True,
        body=ReadAccounts,
        example={"accounts": ["shop/ada@example.com"], "min_ttl": 60, "wait": 5},
        answer=ReadTokens,
        errors=STORE,
    ),
    Route(
        "GET",
        f"/v1/accounts{ACCOUNT}/why",
        "T.WHY",
        TokenRoutes.why_account,
        answer=Story,
        errors=OF_ONE,
    ),
    Route(
        "GET",
        f"/v1/accounts{ACCOUNT}",
        "T.PEEK",
        TokenRoutes.peek,
        answer=WholeAccount,
        errors=OF_ONE,
    ),
    Route(
        "GET",
        f"/v1/answers{ACCOUNT}",
        "T.ANSWERS",
        TokenRoutes.answers,
        answer=UnreadableAnswers,
        errors=OF_ONE,
    ),
    Route(
        "GET",
        "/v1/providers",
        "T.STATS",
        TokenRoutes.providers,
        answer=ProviderList,
        errors=STORE,
    ),
    Route(
        "GET",
        "/v1/providers/{provider}/why",
        "T.WHY",
        TokenRoutes.why_provider,
        answer=Story,
        errors=OF_ONE,
    ),
    Route(
        "POST",
        "/v1/providers/{provider}/release",
        "T.PROVIDER",
        TokenRoutes.release_provider,
        answer=Story,
        errors=OF_ONE,
    ),
    Route(
        "POST",
        "/v1/providers/{provider}/probe",
        "T.PROVIDER",
        TokenRoutes.probe_provider,
        answer=Story,
        errors=OF_ONE,
    ),
    Route(
        "POST",
        "/v1/providers/{provider}/quarantine",
        "T.PROVIDER",
        TokenRoutes.quarantine_provider,
        answer=Story,
        errors=OF_ONE,
    ),
    Route(
        "POST",
        f"/v1/tokens{ACCOUNT}/refresh",
        "T.REFRESH",
        TokenRoutes.refresh,
        query=RefreshOptions,
        answer=RefreshAsked,
        status=202,
        errors=OF_ONE,
    ),
    Route(
        "POST",
        f"/v1/tokens{ACCOUNT}/connect",
        "T.CONNECT",
        TokenRoutes.connect,
        body=ConnectAsked,
        answer=ConnectAddress,
        errors=OF_ONE,
    ),
    Route(
        "POST",
        f"/v1/tokens{ACCOUNT}/device",
        "T.DEVICE",
        TokenRoutes.connect_device,
        body=DeviceAsked,
        answer=DeviceCodes,
        errors=(Timeout, *OF_ONE),
    ),
    Route(
        "GET",
        f"/v1/tokens{ACCOUNT}",
        "T.GET",
        TokenRoutes.get,
        query=OneTokenOptions,
        headers=TokenHeaders,
        answer=Token,
        answer_headers=KEPT,
        others=((304, None),),
        errors=(Timeout, *OF_ONE),
    ),
    Route(
        "PUT",
        f"/v1/tokens{ACCOUNT}",
        "T.PUT",
        TokenRoutes.put,
        query=PutOptions,
        body=GrantFields,
        example={"refresh_token": "rt-8f2c", "access_token": "at-77d0", "expires_in": 3600},
        answer=AccountPut,
        errors=OF_ONE,
    ),
    Route(
        "DELETE",
        f"/v1/tokens{ACCOUNT}",
        "T.DELETE",
        TokenRoutes.delete,
        answer=AccountDeleted,
        errors=OF_ONE,
    ),
)
