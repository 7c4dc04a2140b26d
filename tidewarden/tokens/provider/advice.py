"""
What a person can do about a failure, in words: by its class (see :mod:`.answers`) and the account's
state. Plain functions.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from tidewarden.config.load import Provider

CONSENT = (
    "ask the account's owner to consent again and put the new refresh token (token import, T.PUT)"
)
MEND = {
    "client_credentials": (
        "see that the provider gives this client what it asks for (scope, parameters)"
    ),
    "jwt_bearer": (
        "see that the provider knows the key and lets this subject in (jwt_… of [providers.{name}])"
    ),
    "token_exchange": "put another subject_token, or see to the one of [providers.{name}]",
}
"""What stands for a consent where there are no refresh tokens, by the provider's ``grant``."""
GIVE_UP = "`token refresh` asks once more; `token delete` forgets the account"
AGAIN = (
    "Nothing asks for it by itself any more; its grant may live: `token refresh` asks again"
    " (--state stopped --provider {name}: all that are so)"
)

ALONE = (
    "Other accounts of {name} are refreshed well: if it lasts, ask whoever runs {host} what is the"
    " matter with this one; it is tried again by itself"
)

QUARANTINED = (
    "Nothing for this account: {name} refuses far more than usual, so no refusal counts; see `token"
    " why {name}`"
)

STANDING = {
    "answers": "answers",
    "silent": "does not answer",
    "erring": "answers with errors",
    "limiting": "wants fewer requests",
    "refusing": "refuses our client",
}
"""How a provider may stand with us, and how that is said."""
_SILENT = ("refused", "connect_timeout", "tls", "dns", "proxy", "discovery")
_REFUSING = {
    "invalid_client": (
        "look at client_id, its secret and auth of [providers.{name}]; then restart the nodes, one"
        " by one"
    ),
    "unauthorized_client": "have the provider allow this client the grant type {grant}",
    "unsupported_grant_type": (
        "have the provider allow the grant type {grant}, or look at token_url of [providers.{name}]"
    ),
    "misdirected": "look at token_url of [providers.{name}]: there is no token endpoint",
    "bad_url": "look at token_url of [providers.{name}]: it is no address",
    "misconfigured": "look at [providers.{name}]: no request can be made of it",
}
_PROVIDER = {
    "refused": "See whether {host} is up, and whether this host reaches it",
    "connect_timeout": "See whether {host} is up, and whether this host reaches it",
    "tls": (
        "Its certificate is not trusted here: see tls_ca of [providers.{name}], and the date of"
        " {host}'s certificate"
    ),
    "dns": "See whether this host resolves the name of {host}",
    "proxy": (
        "See whether the proxy of [providers.{name}] is up, and whether it lets this host ask"
        " {host}"
    ),
    "discovery": (
        "See whether the metadata of {host} can be had, or write token_url of [providers.{name}]"
    ),
    "unknown": (
        "Ask whoever runs {host}, if it lasts; see timeout_s of [providers.{name}] if it is slow"
    ),
    "unavailable": "Ask whoever runs {host}, if it lasts",
    "rate_limited": "If it lasts: client_rate of [providers.{name}], or a higher limit there",
}
_ACCOUNT = {
    "rejected": (
        "the provider names no known cause: if it means a refused token, say so in"
        " [providers.{name}.errors]"
    ),
    "account_limited": "nothing: it was asked for too often",
    "too_early": "nothing: it is asked again later",
    "unfit": (
        "put it anew (token import, T.PUT): grant of [providers.{name}] has changed since it"
        " was put"
    ),
    "no_parameters": (
        "put it with its parameters (token import, T.PUT): see account_parameters of"
        " [providers.{name}]"
    ),
    "unsealable": (
        "the key that sealed it is not here: bring it back (docs/operations.md), or put the grant"
        " anew"
    ),
}
_REFUSED = ("invalid_grant", "invalid_scope", "rejected", "unauthorized_client")
"""Classes of answers to one account that may mean that its grant has ended."""
KEPT = (
    "{node} keeps an answer that cannot be read: `token answers PROVIDER/ACCOUNT` shows it; if"
    " there is a refresh token in it, put that (token import, T.PUT)"
)
ITSELF = "its accounts are tried again by themselves"


def standing(error: str) -> str:
    """
    The word for how a provider stands by the class of what it did last: a key of :data:`STANDING`.
    """
    if error in _REFUSING:
        return "refusing"
    if error == "rate_limited":
        return "limiting"
    return "silent" if error in _SILENT else "erring"


def of_provider(provider: Provider, error: str) -> str:
    """What an operator can do while a provider stands so."""
    if error in _REFUSING:
        words = _REFUSING[error]
        return f"{words[0].upper()}{words[1:]}; no account is harmed, all wait".format(
            name=provider.name, host=host_of(provider), grant=provider.grant
        )
    words = _PROVIDER.get(error, _PROVIDER["unavailable"])
    return f"{words}; {ITSELF}".format(name=provider.name, host=host_of(provider))


def of_account(
    provider: Provider,
    state: str,
    error: str,
    kept: str = "",
    *,
    alone: bool = False,
    quarantined: bool = False,
) -> str:
    """
    What can be done about an account; empty: nothing need be.

    Args:
        kept: the node that keeps an unreadable answer of it.
        alone: other accounts of its client are refreshed well meanwhile.
        quarantined: refusals of its client have jumped, and none counts.
    """
    if quarantined and state == "failing" and error in _REFUSED:
        return QUARANTINED.format(name=provider.name)
    rest = _of_account(provider, state, error, alone)
    return f"{KEPT.format(node=kept)}. {rest}" if kept and rest else rest


def after_refusal(provider: Provider) -> str:
    """What gets an account going whose refresh token, or what it has in its place, is refused."""
    return CONSENT if provider.renews else MEND[provider.grant].format(name=provider.name)


def _of_account(provider: Provider, state: str, error: str, alone: bool) -> str:
    consent = after_refusal(provider)
    if state in ("dead", "lost_rotation"):
        return f"{consent[0].upper()}{consent[1:]}; {GIVE_UP}"
    if state == "stopped":
        again = AGAIN.format(name=provider.name)
        return f"{again}; if it is refused then, {consent}" if error in _REFUSED else again
    if state != "failing":
        return ""
    if error in ("invalid_grant", "invalid_scope"):
        again = (
            "It is asked again, minutes to an hour apart, before it is given up (now: `token"
            " refresh`)"
        )
        return f"{again}; if it was revoked, {consent}"
    if alone and error == "rate_limited":
        return "Nothing: it alone is to wait, other accounts go on"
    if alone and error not in (*_ACCOUNT, *_SILENT, "bad_url", "misconfigured"):
        return ALONE.format(name=provider.name, host=host_of(provider))
    if error in _ACCOUNT:
        words = _ACCOUNT[error].format(name=provider.name)
        return f"{words[0].upper()}{words[1:]}"
    return of_provider(provider, error)


def host_of(provider: Provider) -> str:
    """Where the provider is asked, for a person: scheme, host and port."""
    found = urlsplit(provider.token_url or provider.issuer)
    return f"{found.scheme}://{found.netloc.rpartition('@')[2]}"
