"""
Declares the settings of ``[providers.NAME]``: an authorization server and our client there.

:mod:`tidewarden.config.provider_reading` reads them, with a preset of
:mod:`tidewarden.config.presets` beneath where one is named.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import unquote_plus

from .egress import PROXY_ALLOWED, Reach
from .secret import Secret
from .sources import setting

QUEUE_PREFIX = "_tokens:"
QUEUE_BYTES_MAX = 200
URL_ALLOWED = "an http:// or https:// address"
# Under way at a time on one node, at least and at most, where no number is set.
REFRESHERS = (16, 256)
ROTATIONS = ("none", "rolling", "single_use")
ORPHANS = ("hold", "refresh")
ON_DELETES = ("keep", "revoke")
GRANTS = ("refresh_token", "client_credentials", "jwt_bearer", "token_exchange")
AUTHS = ("basic", "basic_raw", "post", "none", "private_key_jwt", "tls", "assertion", "bearer")
ASSERTION_AUTHS = ("assertion", "bearer")
"""Only the grant's own assertion is shown."""
SECRET_AUTHS = ("basic", "basic_raw", "post")
ALGORITHMS = (
    "auto",
    "RS256",
    "RS384",
    "RS512",
    "PS256",
    "PS384",
    "PS512",
    "ES256",
    "ES384",
    "ES512",
    "EdDSA",
)
THUMBPRINTS = ("x5t#S256", "x5t")
PATHS = (
    "access_token",
    "refresh_token",
    "token_type",
    "scope",
    "expires_in",
    "expires_at",
    "refresh_expires_in",
    "error",
    "error_description",
)
EXTRA = r"[^\s.]{1,64}(\.[^\s.]{1,64}){0,7}"
# What the request says by itself; ``parameters`` may not say it, too.
RESERVED = (
    "grant_type",
    "refresh_token",
    "client_id",
    "client_secret",
    "client_assertion",
    "client_assertion_type",
)
GRANT_RESERVED = ("scope", "assertion", "subject_token", "subject_token_type")
"""The same where ``grant`` is not ``refresh_token``."""
CONSENT_RESERVED = (
    "response_type",
    "response_mode",
    "client_id",
    "redirect_uri",
    "scope",
    "state",
    "nonce",
    "code_challenge",
    "code_challenge_method",
    "request",
    "request_uri",
)
"""The same for ``authorization_parameters``, and for the query of ``authorization_url``."""
CLAIMS_RESERVED = ("iss", "sub", "aud", "exp", "iat", "jti")


@dataclass(frozen=True, slots=True)
class Provider:
    """
    Holds the settings of an OAuth 2.0 authorization server and our client there.

    Times are seconds, rates requests a second.
    """

    name: str = ""
    """From ``[providers.NAME]``; the first half of each of its accounts' names."""
    preset: str = setting("", allowed="the name of a preset")
    """
    What is known of this provider, beneath what is written here; ``tidewarden token presets`` lists
    them. Empty: none.
    """
    token_url: str = setting("", allowed=URL_ALLOWED)
    """Its token endpoint (RFC 6749, 3.2); this or ``issuer``."""
    issuer: str = setting("", allowed=URL_ALLOWED)
    """
    Its issuer identifier, by which its token endpoint is looked up (RFC 8414), once an hour at
    most.
    """
    plain_http: bool = setting(False)
    """
    Whether its addresses may be ``http://`` off this machine: secrets and tokens can be read on the
    way.
    """
    client_id: str = setting("", required=True, allowed="the identifier it gave our client")
    """Our client there."""
    client_secret: Secret = field(default_factory=Secret)
    """
    Its secret: ``client_secret``, ``client_secret_file`` or ``client_secret_env``, exactly one
    where ``auth`` sends one.
    """
    account_secret: bool = setting(False)
    """
    Whether each account has a client of its own there, and brings that client's secret: it is
    sealed as tokens are.
    """
    next_secret: Secret = field(default_factory=Secret)
    """
    Another secret of the same client, tried when the first is refused, so that one can be rolled:
    written alike.
    """
    grant: str = setting("refresh_token", choices=GRANTS)
    """
    What an access token is asked for by: a refresh token (RFC 6749, 6), the client's own
    credentials (4.4), a signed assertion (RFC 7523, 2.1), or another token that is exchanged (RFC
    8693). The last three need no refresh token.
    """
    scope: str = setting("", allowed="scopes with a blank between them")
    """
    What is asked for where an account was put without a scope; not with ``refresh_token``, whose
    scope was consented to.
    """
    auth: str = setting("basic", choices=AUTHS)
    """
    How the client proves itself: Basic form-encoded first as RFC 6749 says, Basic raw, in the body,
    not, by a signed assertion (RFC 7523), by its TLS certificate (RFC 8705), or, with ``grant =
    "jwt_bearer"``, by that assertion alone: a member of the body (``assertion``), or the header's
    bearer token (``bearer``).
    """
    jwt_key_file: str = setting("", path=True)
    """File (PEM) with the private key that signs assertions."""
    jwt_key_id: str = setting("", allowed="a key's identifier")
    """Its ``kid``. Empty, the default: none is said."""
    jwt_cert_file: str = setting("", path=True)
    """
    File (PEM) with the key's certificate, whose thumbprint the assertion names. Empty, the default:
    it names none.
    """
    jwt_thumbprint: str = setting("x5t#S256", choices=THUMBPRINTS)
    """By which digest: SHA-256, as Microsoft says, or the older SHA-1."""
    jwt_algorithm: str = setting("auto", choices=ALGORITHMS)
    """``auto``, the default: RS256, ES256/384/512 or EdDSA, as the key is."""
    jwt_audience: str = setting("", allowed="a text")
    """
    Who the assertion is for. Empty, the default: the issuer where one is given, else the token
    endpoint.
    """
    jwt_issuer: str = setting("", allowed="a text")
    """Who issues the assertions of ``jwt_bearer``. Empty, the default: ``client_id``."""
    jwt_subject: str = setting(
        "{account}", allowed="a text, in which {account} is the account's name"
    )
    """
    Whom they are about. ``{account}``, the default: the account's name within the provider. Empty:
    no ``sub`` is said.
    """
    jwt_claims: dict[str, str] = setting({}, allowed="names with a text each")  # noqa: RUF009
    """Further claims of theirs, in which ``{account}`` stands for the account's name."""
    scope_in: str = setting("body", choices=("body", "assertion"))
    """
    Where ``jwt_bearer`` says the scope: as a member of the request (RFC 7523), or as a claim, as
    Google wants it.
    """
    subject_token: Secret = field(default_factory=Secret)
    """
    The token that ``token_exchange`` trades: ``subject_token`` or ``subject_token_env``. None, and
    no file either: each account is put with its own.
    """
    subject_token_file: str = setting("", path=True)
    """File with that token, read for each request: whoever writes it may replace it."""
    subject_token_type: str = setting(
        "access_token", allowed="an RFC 8693 name, as access_token or jwt, or a URI"
    )
    """What kind of token that is; a name stands for ``urn:ietf:params:oauth:token-type:NAME``."""
    tls_cert: str = setting("", path=True)
    """File (PEM) with the client's certificate, shown on every connection where it is given."""
    tls_key: str = setting("", path=True)
    """File (PEM) with its key."""
    tls_ca: str = setting("", path=True)
    """
    File (PEM) with the authorities by which the provider is trusted. Empty, the default: those of
    certifi.
    """
    proxy: str = setting("", allowed=PROXY_ALLOWED, secret=True, show=False)
    """
    The forward proxy through which it is asked, by a tunnel where its addresses are ``https://``.
    ``environment``: the one that ``HTTPS_PROXY`` and its like name. Empty, the default: none,
    whatever they say.
    """
    account_parameters: dict[str, str] = setting({}, allowed="names with a regular expression each")  # noqa: RUF009
    """
    What differs from account to account, by the name that stands as ``{name}`` in addresses,
    ``client_id``, ``parameters`` and ``headers``: the pattern that a value matches as a whole.
    """
    body: str = setting("form", choices=("form", "json"))
    """How the request is written; RFC 6749 says ``form``."""
    parameters: dict[str, str] = setting(  # noqa: RUF009
        {}, allowed="names with a text each", secret=True, show=False
    )  # becomes a factory
    """Further members of the request's body."""
    headers: dict[str, str] = setting({}, allowed="names with a text each", secret=True, show=False)  # noqa: RUF009
    """Further headers of the request."""
    paths: dict[str, str] = setting({}, allowed=f"of {', '.join(PATHS)}, a dotted path each")  # noqa: RUF009
    """
    Where a member of the answer lies, if not under its own name at the top: ``access_token =
    "authed_user.access_token"``.
    """
    extras: tuple[str, ...] = setting(
        (), pattern=EXTRA, allowed="names of members of the answer, dotted paths"
    )
    """
    Members of the answer that are kept with the pair and given to readers: ``instance_url``. Not
    sealed: no secrets.
    """
    errors: dict[str, str] = setting(  # noqa: RUF009
        {}, allowed="'STATUS', 'CODE' or 'STATUS CODE' with a class each"
    )
    """
    What this provider's errors mean, before what they mean elsewhere; the closest of the three
    forms counts.
    """
    rotation: str = setting("single_use", choices=ROTATIONS)
    """
    What a use does to a refresh token. ``single_use``, the default, is the careful one: a reuse
    kills the grant.
    """
    grace_s: float = setting(0.0, low=0, high=31_536_000)
    """How long a used refresh token still works there. 0, the default: assume not at all."""
    kills_access_token: bool = setting(False)
    """
    Whether a refresh ends the old access token at once: then nothing is refreshed sooner than it
    must be.
    """
    orphan: str = setting("hold", choices=ORPHANS)
    """
    What a node does for its readers while the store is away: nothing (``hold``, the default), or
    ``refresh`` accounts that it knows. Two nodes may do it at once, so not where a use changes the
    refresh token or ends the old access token.
    """
    on_delete: str = setting("keep", choices=ON_DELETES)
    """
    What becomes of a deleted account's refresh token at the provider: it lives on (``keep``, the
    default), or is revoked (RFC 7009). Some end all grants of that user to the client with it.
    """
    revocation_url: str = setting("", allowed=URL_ALLOWED)
    """Its revocation endpoint. Empty, the default: the one that the issuer's metadata name."""
    authorization_url: str = setting("", allowed=URL_ALLOWED)
    """
    Its authorization endpoint (RFC 6749, 3.1), where people consent. Empty, the default: the one
    that the issuer's metadata name; without an issuer nobody can consent here.
    """
    authorization_parameters: dict[str, str] = setting({}, allowed="names with a text each")  # noqa: RUF009
    """Further parameters of the authorization request: ``access_type = "offline"``."""
    par_url: str = setting("", allowed=URL_ALLOWED)
    """
    Where authorization requests are pushed to first (RFC 9126). Empty, the default: the one that
    the issuer's metadata name, or none.
    """
    device_url: str = setting("", allowed=URL_ALLOWED)
    """
    Its device authorization endpoint (RFC 8628), for people who consent on another device. Empty,
    the default: the one that the issuer's metadata name, or none.
    """
    consent_issuer: str = setting("", allowed=URL_ALLOWED)
    """
    Its issuer identifier where ``issuer`` is not set: ``iss`` of its answers (RFC 9207) and of its
    ID tokens has to be this. Empty, the default: not known, and not looked at.
    """
    own_callback: bool = setting(False)
    """
    Whether people come back to an address of this provider's own, ``/v1/connect/put-callback/NAME``
    (RFC 9700, 4.4.2). For one whose answers say no ``iss``: another provider that leads people on
    to it is not told its codes.
    """
    consent_scope: str = setting("", allowed="scopes with a blank between them")
    """What a person is asked for where a link names no scope. Empty, the default: nothing."""
    narrower_scope: str = setting("refuse", choices=("refuse", "accept"))
    """
    What becomes of a consent to less than was asked for: it is refused, the default, or stored as
    it is.
    """
    pkce: bool = setting(True)
    """Whether codes are bound to their request (RFC 7636). A few providers refuse that."""
    margin_s: float = setting(300.0, low=0, high=31_536_000)
    """How long before its expiry a token is refreshed. Five minutes outlast most outages."""
    margin_share: float = setting(0.0, low=0, high=0.9)
    """
    The margin as a share of the token's life, where that is more than ``margin_s``. 0, the default:
    not.
    """
    not_before_s: float = setting(0.0, low=0, high=31_536_000)
    """
    Never refreshed earlier than this before its expiry, whoever asks: some refuse it. 0, the
    default: no such bound.
    """
    level_share: float = setting(0.25, low=0, high=0.5)
    """
    Up to this share of its life ahead a token is refreshed, while there is room, if too many fall
    due together. 0: never.
    """
    default_life_s: float = setting(3600.0, low=1, high=31_536_000)
    """Life of an access token when the provider tells none. An hour is what most use."""
    life_s_max: float = setting(31_536_000.0, low=1, high=31_622_400)
    """Longest life that is believed: a token that never seems to end would never be refreshed."""
    consent_life_s: float = setting(0.0, low=0, high=315_360_000)
    """
    How long a refresh token lives unused there: each use begins that anew. 0, the default: not
    known.
    """
    consent_fixed_s: float = setting(0.0, low=0, high=315_360_000)
    """How long a grant lasts from its consent, however it is used. 0, the default: not known."""
    keep_alive_s: float = setting(0.0, low=0, high=31_536_000)
    """
    A refresh token that dies when idle is used at least so often, however long access tokens live.
    0, the default: need not.
    """
    account_interval_s: float = setting(0.0, low=0, high=86_400)
    """Least time between two refreshes of one account that went well. 0, the default: none."""
    client_rate: float = setting(0.0, low=0, high=1_000_000)
    """
    Most requests a second of this client, all nodes together. 0, the default: no limit until the
    provider says 429.
    """
    host_rate: float = setting(0.0, low=0, high=1_000_000)
    """
    Most requests a second to the token endpoint's host, all nodes and its other clients' there
    together. 0: no limit.
    """
    timeout_s: float = setting(30.0, low=0.1, high=600)
    """Longest one refresh may take, connect to last byte."""
    connect_timeout_s: float = setting(0.0, low=0, high=600)
    """Longest the connecting may take. 0, the default: two fifths of ``timeout_s``."""
    refreshers: int = setting(0, low=0, high=1000)
    """
    Most refreshes under way at a time on one node. 0, the default: 16, and up to 256 while accounts
    would be refreshed too late.
    """
    unconfirmed: tuple[str, ...] = ()
    """
    Settings of its preset that nobody has found in the provider's own words: named in the log at
    the start.
    """
    reach: Reach | None = None
    """It was put while nodes run: what it may reach. None: it is of the file, and may anything."""
    own_issuer: bool = False
    """This is the provider as one account has it, with an issuer that is that account's."""
    own_hosts: bool = False
    """This is the provider as one account has it, at a host that is that account's."""

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Return the secrets to try, in order; an empty one where none is sent."""
        return (self.client_secret, self.next_secret) if self.next_secret else (self.client_secret,)

    @property
    def renews(self) -> bool:
        """Return whether the provider's accounts have refresh tokens, which a use may change."""
        return self.grant == "refresh_token"

    @property
    def brings(self) -> str:
        """Return the token without which none of its accounts can be put; empty: there is none."""
        if self.grant == "token_exchange":
            return "" if self.subject_token or self.subject_token_file else "subject_token"
        return "refresh_token" if self.renews else ""

    @property
    def concurrency_bounds(self) -> tuple[int, int]:
        """Return the bounds of the limit of refreshes under way at a time on one node."""
        return (self.refreshers, self.refreshers) if self.refreshers else REFRESHERS

    @property
    def connect_s(self) -> float:
        """Return the longest that connecting may take: what takes longer was surely not sent."""
        return min(self.connect_timeout_s or self.timeout_s * 0.4, self.timeout_s)

    def margin_of(self, life_s: float) -> float:
        """Return the margin of a token that lives ``life_s``, before any bound by its life."""
        return max(self.margin_s, self.margin_share * life_s)


_PLAIN = re.compile(r"[A-Za-z0-9_.:/-]")


def queue_of(provider: str, client_id: str) -> str:
    """
    Return the queue of a provider's client.

    What a queue's name may not hold stands there as ``_xHH``, byte by byte.
    """
    coded = []
    for at, char in enumerate(client_id):
        # An underscore that would read as such a code is coded itself, so that no two clients share
        # a queue.
        if _PLAIN.fullmatch(char) and not re.match(r"_x[0-9A-F]{2}", client_id[at:]):
            coded.append(char)
        else:
            coded.extend(f"_x{byte:02X}" for byte in char.encode())
    return f"{QUEUE_PREFIX}{provider}:{''.join(coded)}"


def is_of_consent(name: str) -> bool:
    """Tell whether the request of a consent has a parameter of this name by itself."""
    return name.strip().casefold() in CONSENT_RESERVED


def reserved_in(url: str) -> str:
    """
    Return a name in an address's query that the request of a consent says by itself.

    Of two values some servers take the first, and some part them by a semicolon. Empty: none.
    """
    parts = re.split("[&;]", url.partition("?")[2].partition("#")[0])
    names = (unquote_plus(part.partition("=")[0]) for part in parts)
    return next(filter(is_of_consent, names), "")
