"""Finds the provider and the queue of an account by its name."""

from __future__ import annotations

from collections.abc import Mapping

from tidewarden import errors
from tidewarden.config.load import Provider
from tidewarden.config.provider import queue_of
from tidewarden.config.rights import AccountRights

from . import names


class Directory:
    """
    Holds the configured providers, and the queue in which the accounts of each lie.

    ``known`` and ``queues`` have the providers, too, that were removed since the start: something
    of theirs may be under way.
    """

    def __init__(self, providers: Mapping[str, Provider]) -> None:
        self.providers: dict[str, Provider] = {}
        self.known: dict[str, Provider] = {}
        self.queues: dict[str, str] = {}
        """The queues by provider."""
        self.change(providers)

    def change(self, providers: Mapping[str, Provider]) -> None:
        """Use these providers, in the same mappings, which other objects hold."""
        self.known.update(providers)
        self.queues.update({name: queue_of(name, one.client_id) for name, one in providers.items()})
        self.providers.clear()
        self.providers.update(providers)

    def provider(self, name: str) -> Provider:
        """Return the provider of that name. Raises: NotFound."""
        found = self.providers.get(name)
        if found is None and name in self.known:
            raise errors.NotFound(
                f"the provider {name!r} was removed from this node's configuration; its accounts"
                " are kept, and not refreshed until it is configured again"
            )
        if found is None:
            known = ", ".join(sorted(self.providers)) or "none"
            raise errors.NotFound(f"there is no provider {name[:60]!r}; configured: {known}")
        return found

    def names(self, provider: str, allowed: AccountRights) -> list[str]:
        """
        Return the providers of which some accounts may be ``allowed``: all, or ``provider`` alone.

        Raises: NotFound: there is none at all, or not that one.
        """
        if not self.providers:
            raise errors.NotFound("no provider is configured")
        names = [self.provider(provider).name] if provider else sorted(self.providers)
        return [name for name in names if allowed.allow_part(name)]

    def account(self, account: str) -> tuple[Provider, str, str]:
        """
        Return the provider, the queue and the name of ``provider/name``.

        Raises: BadArg: it is no such name. NotFound: that provider is not configured.
        """
        provider, name = names.split(account)
        return self.provider(provider), self.queues[provider], name
