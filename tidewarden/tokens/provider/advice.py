"""
Tells what a person can do about a failure, by its class and the account's state.

Plain functions; :mod:`.token_response` finds the class.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from tidewarden.config.error_classes import Standing, class_of
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
    "blocked": "is not asked",
}
"""How a provider may stand with us, and how that is said."""
KEPT = (
    "{node} keeps an answer that cannot be read: `token answers PROVIDER/ACCOUNT` shows it; if"
    " there is a refresh token in it, put that (token import, T.PUT)"
)


def standing(error: str) -> Standing:
    """
    The word for how a provider stands by the class of what it did last: a key of :data:`STANDING`.
    """
    return class_of(error).standing


def of_provider(provider: Provider, error: str) -> str:
    """What an operator can do while a provider stands so."""
    return _filled(class_of(error).provider_advice, provider)


def _filled(text: str, provider: Provider) -> str:
    return text.format(
        name=provider.name,
        host=origin_of(provider),
        grant=provider.grant,
        consent=after_refusal(provider),
    )


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
    if quarantined and state == "failing" and class_of(error).ends_grant:
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
        return f"{again}; if it is refused then, {consent}" if class_of(error).ends_grant else again
    if state != "failing":
        return ""
    found = class_of(error)
    text = found.alone_advice if alone else ""
    return _filled(text or found.account_advice or found.provider_advice, provider)


def origin_of(provider: Provider) -> str:
    """Where the provider is asked, for a person: scheme, host and port."""
    found = urlsplit(provider.token_url or provider.issuer)
    return f"{found.scheme}://{found.netloc.rpartition('@')[2]}"
