"""What the refreshers of a node work with, and what they count."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from random import Random
from typing import Any

from tidewarden.clock import Clock
from tidewarden.config.load import Config
from tidewarden.queue import Queues
from tidewarden.tokens import policy
from tidewarden.tokens.accounts.account_store import AccountStore, OnSettled
from tidewarden.tokens.accounts.cache import Cache
from tidewarden.tokens.events.lifecycle import AccountLifecycle
from tidewarden.tokens.events.revocation import Revoker
from tidewarden.tokens.journal.journal import Journal
from tidewarden.tokens.journal.peer_queries import Peers
from tidewarden.tokens.provider.token_endpoint import TokenEndpoint
from tidewarden.tokens.vault.vault import Vault


@dataclass(slots=True)
class Counts:
    """What a node's refreshers have done since its start."""

    refreshes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By provider and class of outcome."""
    late: Counter[str] = field(default_factory=Counter)
    """Refreshes that succeeded after the old access token had expired, by provider."""
    spares: int = 0
    """Answers that found their row moved on and were kept aside."""
    lost_rotations: int = 0
    """
    Accounts whose new refresh token was lost with its answer, for which consent is needed anew.
    """
    quarantines: Counter[str] = field(default_factory=Counter)
    """Times that a provider's refusals jumped and nobody was declared dead for it."""
    revocations: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Deleted accounts' tokens by provider and what became of them there."""
    adopted: int = 0
    """Answers that were found in another node's journal."""
    orphans: int = 0
    """Pairs that came while the store was away."""
    orphans_dropped: int = 0
    """Answers that came without the store, and whose accounts had moved on when it was back."""
    replayed: int = 0
    """Answers that came from the journal into the store."""

    def figures(self) -> dict[str, Any]:
        """Each by its name."""
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: dict(value) if isinstance(value, Counter) else value
            for name, value in found.items()
        }


@dataclass(frozen=True, slots=True)
class RefreshContext:
    """What every pool of a node works with."""

    queues: Queues
    ledger: AccountStore
    vault: Vault
    journal: Journal
    exchange: TokenEndpoint
    clock: Clock
    dice: Random
    counts: Counts
    on_settled: OnSettled
    cache: Cache
    peers: Peers = field(default_factory=lambda: Peers(Config(), None))
    confirm_s: float = policy.CONFIRM_S
    tidings: AccountLifecycle | None = None
    """Hears what becomes of accounts and providers."""
    revoker: Revoker | None = None
    """Revokes what nobody has any more; None: nobody does."""
    storing: set[tuple[str, str]] = field(default_factory=set)
    """Accounts (queue and name) whose answers are on their way into the store."""
    asking: set[tuple[str, str]] = field(default_factory=set)
    """Accounts (queue and name) that a request of this node is, or may be, under way for."""
    give_up_s: float = policy.GIVE_UP_S
