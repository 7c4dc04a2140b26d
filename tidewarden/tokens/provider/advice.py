"""
Tells what an operator can do about a provider, by the class of its failure.

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
"""The words that replace a consent if the provider's ``grant`` has no refresh tokens."""
STANDING = {
    "answers": "answers",
    "silent": "does not answer",
    "erring": "answers with errors",
    "limiting": "wants fewer requests",
    "refusing": "refuses our client",
    "blocked": "is not asked",
}
"""The states of a provider, and the words for each."""


def standing(error: str) -> Standing:
    """Return the key of :data:`STANDING` for a provider, by the class of its last error."""
    return class_of(error).standing


def of_provider(provider: Provider, error: str) -> str:
    """Return the advice to an operator about a provider in such trouble."""
    return filled(class_of(error).provider_advice, provider)


def filled(text: str, provider: Provider) -> str:
    """Fill the provider's names into a class's text."""
    return text.format(
        name=provider.name,
        host=origin_of(provider),
        grant=provider.grant,
        consent=after_refusal(provider),
    )


def after_refusal(provider: Provider) -> str:
    """Return the remedy for an account whose credential the provider refuses."""
    return CONSENT if provider.renews else MEND[provider.grant].format(name=provider.name)


def origin_of(provider: Provider) -> str:
    """Return the scheme, host and port at which the provider is asked, for a person to read."""
    found = urlsplit(provider.token_url or provider.issuer)
    return f"{found.scheme}://{found.netloc.rpartition('@')[2]}"
