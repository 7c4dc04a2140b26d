"""
Leads browsers to a provider's consent and back, and puts what the provider gives for it.

A link is made for an account, opened in a browser, and leads to the provider. What is needed for
the way back goes with the browser, sealed (:mod:`.sealed_visits`), so that any node may answer. The
state is used up in the store before its code is sent (:mod:`.claims`), the answer is in this node's
journal before it is used, and then put. A code is sent once, whatever is answered.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tidewarden import errors
from tidewarden.config import placeholders, return_addresses
from tidewarden.config.load import Connect, Provider
from tidewarden.tokens.accounts import names
from tidewarden.tokens.accounts.account_store import AccountReading
from tidewarden.tokens.provider.discovery import NotFoundError
from tidewarden.tokens.provider.token_response import HttpAnswer, classify, rules_of, text_of_member
from tidewarden.tokens.shared_parts import SharedParts
from tidewarden.tokens.verbs.grants import Grants

from .authorization_request import address_with, code_grant, request_members, wants_identity
from .callback import Callback, code_of, issuers_of_others, read_callback
from .claims import STATES_MAX, Claims
from .given_grants import GivenGrants
from .granted import Asked, fields_of
from .link_checks import check_connectable, check_parameters, check_scope_text, settings_digest
from .outcomes import ConsentFailed
from .sealed_visits import LINK_CHARS_MAX, VISIT_CHARS_MAX, Link, SealedVisits, Visit

log = logging.getLogger("tidewarden.tokens")

VISIT_S = 900
"""How long a browser may be at the provider."""
STOP_S = 13.0
"""How long a node that stops waits for codes that are under way."""
VERIFIER_BYTES, NONCE_BYTES = 32, 16
NO_URL = "connect.url is not set in the configuration of this node"
OWN_PATHS = ("callback", "put-callback")
REQUEST_URI_CHARS_MAX = 2_000
PUSHES_KEPT = 1_000
"""Links of which it is remembered how many requests were pushed for them."""


@dataclass(frozen=True, slots=True)
class ConnectLink:
    """Holds a link to an account's consent."""

    url: str
    until_ms: int
    """When it expires, unix milliseconds."""


@dataclass(frozen=True, slots=True)
class Departure:
    """Says where a browser is sent, and what it keeps under which state meanwhile."""

    location: str
    state: str
    visit: str


@dataclass(frozen=True, slots=True)
class Arrival:
    """Says how a consent ended."""

    word: str
    fresh: bool
    """Whether it ended so now; else it had before, and the browser asked once more."""
    account: str
    user: str
    """Who made the link."""
    return_to: str
    """Where the browser is sent; empty: it is shown a page."""


class Connecting:
    """
    Makes links to consents and answers the browsers that open them, on one node.

    ``given`` brings to the store what providers gave; :meth:`stop` waits for what is under way.
    """

    def __init__(self, shared: SharedParts, grants: Grants) -> None:
        """Put by ``grants`` what providers give."""
        self.settings: Connect = shared.config.connect
        self._directory = shared.directory
        self._accounts = shared.accounts
        self._endpoint = shared.endpoint
        self._clock = shared.clock
        self._sealed = SealedVisits(shared.vault, shared.clock)
        self._claims = Claims(shared.accounts.script, VISIT_S * 1000)
        self.given = GivenGrants(shared, grants, self._claims)
        self._under_way: dict[str, asyncio.Task[tuple[str, bool]]] = {}
        """What is done for browsers that came back, by their states."""
        self._pushes: dict[str, int] = {}
        """How many requests were pushed for each link, the latest at the end."""

    # --- links

    async def link(
        self,
        account: str,
        return_to: str = "",
        scope: str = "",
        parameters: Mapping[str, Any] | None = None,
        user: str = "",
    ) -> ConnectLink:
        """
        Make a link by which somebody may consent for an account, which need not be there yet.

        Args:
            return_to: where the browser is sent in the end; empty: it is shown a page.
            scope: what is asked for; empty: the provider's ``consent_scope``.
            parameters: of the account; None: those that it has.
            user: who makes the link, for the audit log.

        Raises: BadArg: nobody can consent here, or not so. NotFound: there is no such provider.
        What the store raises.
        """
        provider, queue, name = self._directory.account(account)
        self._check(provider, return_to)
        scope = check_scope_text(scope or provider.consent_scope)
        own = await check_parameters(self._accounts, provider, queue, name, parameters)
        until_ms = self._clock.unix_ms() + int(self.settings.link_s * 1000)
        digest = settings_digest(provider)
        link = Link(secrets.token_urlsafe(9), until_ms, return_to, scope, own, user, digest)
        text = await self._sealed.seal_link(provider.name, name, link)
        visit = self._visit(placeholders.filled(provider, own), name, link, says_issuer=True)
        kept = await self._sealed.seal_visit("", visit)
        if len(text) > LINK_CHARS_MAX or len(kept) > VISIT_CHARS_MAX:
            raise errors.BadArg("return address, scope and parameters are too long together")
        base = self.settings.url.rstrip("/")
        path = f"/v1/connect/{provider.name}/{quote(name, safe='')}"
        return ConnectLink(f"{base}{path}?link={text}", until_ms)

    def _check(self, provider: Provider, return_to: str) -> None:
        """Check that a person can consent at the provider. Raises: BadArg."""
        if not self.settings.url:
            raise errors.BadArg(f"nobody can consent here: {NO_URL}")
        check_connectable(provider)
        if not (provider.authorization_url or provider.issuer):
            raise errors.BadArg(
                f"{provider.name} has no authorization_url, and no issuer whose metadata name one"
            )
        if provider.name in OWN_PATHS:
            raise errors.BadArg(f"for a provider named {provider.name!r} no link has a path")
        if return_to and not return_addresses.is_allowed(return_to, self.settings.return_to):
            fault = return_addresses.fault_of(return_to) or "is none of connect.return_to"
            raise errors.BadArg(f"the return address {fault}: found {return_to[:80]!r}")

    # --- the way there

    async def begin(self, account: str, text: str) -> Departure:
        """
        Send a browser that has opened the link ``text`` of ``account`` to the provider.

        Raises: ConsentFailed: the link is none, or nothing is known of where to send it.
        """
        try:
            provider_name, name = names.split(account)
        except errors.BadArg:
            raise ConsentFailed("link_invalid") from None
        link = await self._sealed.open_link(provider_name, name, text)
        if not self.settings.url:
            raise ConsentFailed("unavailable", NO_URL)
        provider, _, _ = self._found(provider_name, name, link)
        try:
            endpoints = await self._endpoint.consent_endpoints(provider)
        except NotFoundError as error:
            raise ConsentFailed("unavailable", str(error)) from None
        if not endpoints.authorization:
            raise ConsentFailed("unavailable", "its metadata name no authorization_endpoint")
        state = secrets.token_urlsafe(24)
        visit = self._visit(provider, name, link, says_issuer=endpoints.says_issuer)
        kept = await self._sealed.seal_visit(state, visit)
        if len(kept) > VISIT_CHARS_MAX:  # this node's settings are longer than the link's
            raise ConsentFailed("link_invalid", "its visit is too long for a browser to keep")
        members: Mapping[str, str] = request_members(
            provider, visit.redirect_uri, link.scope, state, visit.verifier, visit.nonce
        )
        if endpoints.pushed:
            members = await self._pushed(provider, endpoints.pushed, members, link)
        return Departure(address_with(endpoints.authorization, members), state, kept)

    def _visit(self, provider: Provider, name: str, link: Link, *, says_issuer: bool) -> Visit:
        """Return a new visit of a browser that has opened the link."""
        return Visit(
            provider.name,
            name,
            link,
            self._clock.unix_ms() + VISIT_S * 1000,
            self._redirect_uri(provider),
            secrets.token_urlsafe(VERIFIER_BYTES) if provider.pkce else "",
            secrets.token_urlsafe(NONCE_BYTES) if wants_identity(link.scope) else "",
            provider.issuer or provider.consent_issuer,
            says_issuer,
        )

    def _redirect_uri(self, provider: Provider) -> str:
        """
        Return the address that a provider sends browsers back to.

        Whoever puts a provider while nodes run may have it lead a browser on to another one, and
        would be sent that one's code (mix-up): so each of these has an address of its own, and of
        the others those that ask for one.
        """
        if provider.reach is not None or provider.own_callback:
            return self.settings.own_redirect_uri(provider.name)
        return self.settings.redirect_uri

    def _found(self, provider_name: str, name: str, link: Link) -> tuple[Provider, str, str]:
        """
        Return the provider with the account's parameters, its queue, and the account's name.

        Raises: ConsentFailed: the provider is not here, is another by now, or takes the parameters
        no more.
        """
        try:
            provider, queue, _ = self._directory.account(f"{provider_name}/{name}")
            filled = placeholders.filled(provider, link.parameters)
        except errors.NotFound as error:  # another node may have it
            raise ConsentFailed("unavailable", str(error)) from None
        except errors.BadArg as error:
            raise ConsentFailed("link_invalid", str(error)) from None
        if link.settings != settings_digest(provider):
            raise ConsentFailed("link_invalid", "the provider of that name is another by now")
        return filled, queue, name

    async def _pushed(
        self, provider: Provider, url: str, members: Mapping[str, str], link: Link
    ) -> Mapping[str, str]:
        """
        Push a request, and return what the browser brings instead of it (RFC 9126, 4).

        Raises: ConsentFailed: the provider does not take it, or the link has had its share.
        """
        count = self._pushes.get(link.id, 0) + 1
        if count > STATES_MAX:
            raise ConsentFailed("link_used", "too many requests were pushed for it")
        self._pushes.pop(link.id, None)
        while len(self._pushes) >= PUSHES_KEPT:
            del self._pushes[next(iter(self._pushes))]
        self._pushes[link.id] = count
        outcome = await self._endpoint.ask_beside(provider, url, members)
        if isinstance(outcome, HttpAnswer):
            uri = text_of_member(outcome, "request_uri") if outcome.status in (200, 201) else ""
            if 0 < len(uri) <= REQUEST_URI_CHARS_MAX and uri.isascii() and uri.isprintable():
                return {"client_id": provider.client_id, "request_uri": uri}
            if uri:
                raise ConsentFailed("provider_error", "its pushed request has an odd request_uri")
            verdict = classify(outcome, self._clock.unix_ms())
            raise ConsentFailed("provider_error", f"its pushed request: {verdict.brief}")
        raise ConsentFailed("unavailable", outcome.message)

    # --- the way back

    async def finish(
        self, query: Iterable[tuple[str, str]], kept: Callable[[str], str], provider: str = ""
    ) -> Arrival:
        """
        Answer a browser that comes back from a provider with the parameters ``query``.

        ``kept`` gives what the browser kept under a state; empty: nothing. ``provider``: at whose
        own address it came back; empty: at the one of all others. Raises: ConsentFailed: it is not
        known which consent this is. What the store raises: no code was sent.
        """
        callback = read_callback(query)
        visit = await self._sealed.open_visit(callback.state, kept(callback.state))
        if not self.settings.url:
            raise ConsentFailed("unavailable", NO_URL)
        came_to = self.settings.redirect_uri
        if provider:
            came_to = self.settings.own_redirect_uri(provider)
        work = self._under_way.get(callback.state)
        again = work is not None  # the browser asks once more before it was answered
        if work is None:
            # Whatever becomes of the browser, a code that was sent is put to its use.
            work = asyncio.create_task(self._ended(callback, visit, came_to), name="a consent")
            self._under_way[callback.state] = work
            work.add_done_callback(lambda _: self._under_way.pop(callback.state))
        word, fresh = await asyncio.shield(work)
        fresh = fresh and not again
        return_to = visit.link.return_to
        if not return_addresses.is_allowed(return_to, self.settings.return_to):
            return_to = ""
        account = f"{visit.provider}/{visit.account}"
        return Arrival(word, fresh, account, visit.link.user, return_to)

    async def _ended(self, callback: Callback, visit: Visit, came_to: str) -> tuple[str, bool]:
        """Return how a consent ends, and whether it ends so now. Raises what the store raises."""
        try:
            return await self._settled(callback, visit, came_to), True
        except ConsentFailed as failed:
            log.log(
                logging.WARNING if failed.word == "outcome_unknown" else logging.INFO,
                "the consent of %s/%s: %s (%s)",
                visit.provider,
                visit.account,
                failed.word,
                failed.reason or "-",
            )
            return failed.word, False

    async def _settled(self, callback: Callback, visit: Visit, came_to: str) -> str:
        """
        Use up the state, trade the code, and put what comes of it; return how it ended.

        Raises: ConsentFailed, and what the store raises before the state is used up.
        """
        provider, queue, name = self._found(visit.provider, visit.account, visit.link)
        reading = await self._accounts.get(queue, name)
        await self.given.ready()
        claim = await self._claims.use_up(callback.state, visit.link, provider.timeout_s)
        try:
            if came_to != visit.redirect_uri:
                raise ConsentFailed("wrong_issuer", "it came back at another provider's address")
            code = code_of(callback, visit, self._issuers_but(provider), self._clock.unix_ms())
            fields = await self._traded(provider, visit, reading, code)
        except ConsentFailed as failed:
            await self.given.note(claim, failed.word)
            raise
        at = provider, queue, name
        return await self.given.take_in(*at, reading.grant, fields, claim, reading.floor)

    def _issuers_but(self, provider: Provider) -> frozenset[str]:
        """Return the issuers whose answers are not this provider's."""
        return issuers_of_others(provider, self._directory.providers.values())

    async def _traded(
        self, provider: Provider, visit: Visit, reading: AccountReading, code: str
    ) -> Mapping[str, Any]:
        """
        Send the code, once, and return the fields of the put.

        Raises: ConsentFailed: it came to nothing.
        """
        credentials = self._endpoint.credentials
        number = credentials.order(provider)[0]
        grant = code_grant(visit.redirect_uri, code, visit.verifier)
        outcome = await self._endpoint.exchange(provider, grant, number)
        rules = rules_of(provider.paths, provider.errors, provider.extras)
        verdict = classify(outcome, self._clock.unix_ms(), rules)
        if verdict.outcome == "invalid_client" and len(provider.secrets) > 1:
            credentials.prefer(provider, 1 - number)  # the next code goes with the other secret
        link = visit.link
        asked = Asked(link.scope, link.parameters, visit.issuer, visit.nonce or None)
        now_s = self._clock.unix_ms() / 1000
        return fields_of(provider, outcome, verdict, asked, reading, now_s)

    # --- life

    async def stop(self) -> None:
        """Wait for codes that are under way, in 13 s at most."""
        if self._under_way:
            await asyncio.wait(self._under_way.values(), timeout=STOP_S)
