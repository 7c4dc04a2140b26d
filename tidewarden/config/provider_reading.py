"""
Reads and checks ``[providers.NAME]``.

It adds the preset's settings, reads the secrets, and finds contradictions.

Every problem names the file's line, or the variable or flag, like all others of
:mod:`tidewarden.config.load`.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from . import placeholders, presets, signing, tls
from .addresses import plain_fault, secret_url_fault
from .egress import ENVIRONMENT, PROXY_ALLOWED, proxy_fault, proxy_of
from .error_classes import CONFIGURABLE
from .provider import (
    ASSERTION_AUTHS,
    CLAIMS_RESERVED,
    GRANT_RESERVED,
    PATHS,
    QUEUE_BYTES_MAX,
    RESERVED,
    SECRET_AUTHS,
    Provider,
    is_of_consent,
    queue_of,
    reserved_in,
)
from .secret import Secret, secret_of_file
from .sources import Found, nearest, read

SECRET_KEYS = ("client_secret", "client_secret_file", "client_secret_env")
KEEP_ALIVE_SHARE = 0.5
"""Of the time that a refresh token lives unused: so often it is used at least."""
NEXT_KEYS = ("next_secret", "next_secret_file", "next_secret_env")
SUBJECT_KEYS = ("subject_token", "subject_token_env")
CONSENT_KEYS = (
    "authorization_url",
    "authorization_parameters",
    "par_url",
    "device_url",
    "consent_issuer",
    "own_callback",
    "consent_scope",
    "narrower_scope",
    "pkce",
)
"""Settings that tell how people consent."""
PLACES = ("token_url", "issuer", "authorization_url", "par_url", "device_url", "consent_issuer")
"""Settings of a preset that are void where the provider is at another address."""
RENEWING_KEYS = (
    *CONSENT_KEYS,
    "rotation",
    "grace_s",
    "kills_access_token",
    "keep_alive_s",
    "on_delete",
    "consent_life_s",
    "consent_fixed_s",
)
"""Settings of a preset that tell of refresh tokens."""
TOKENS = ("access_token", "refresh_token", "id_token")
"""Members of answers that are secrets, and sealed or dropped."""
NAME = r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}"
NAME_ALLOWED = "1 to 63 of A-Z a-z 0-9 _ -, the first a letter or digit"
ERROR_KEY = re.compile(r"\d{3}|(\d{3} )?\S(.{0,62}\S)?")
HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")


def read_provider(
    name: str, table: dict[str, Found], environ: Mapping[str, str], problems: list[str]
) -> Provider:
    """
    Read the provider of that name, all of it; a setting that cannot be used becomes a problem.
    """
    section = f"providers.{name}"
    if not re.fullmatch(NAME, name):
        problems.append(f"{section}: found the name {name!r}; allowed: {NAME_ALLOWED}")
    table, unconfirmed = _with_preset(section, table, problems)
    provider = dataclasses.replace(
        read(Provider, section, table, problems), name=name, unconfirmed=unconfirmed
    )
    provider = dataclasses.replace(
        provider, subject_token=_subject_token(section, table, environ, problems, provider.grant)
    )
    if provider.consent_life_s and not provider.keep_alive_s:
        # Else it would end unused beside an access token that lives longer.
        provider = dataclasses.replace(
            provider, keep_alive_s=provider.consent_life_s * KEEP_ALIVE_SHARE
        )
    problems.extend(
        f"{_origin(table, key)}{section}{'.' * bool(key)}{key}: {fault}"
        for key, fault in _faults(provider, table)
    )
    proxy = proxy_of(provider.proxy, provider.token_url or provider.issuer, environ)
    if proxy and (fault := proxy_fault(proxy)):
        if provider.proxy == ENVIRONMENT:
            fault = f"the environment names no such proxy; allowed: {PROXY_ALLOWED}"
        problems.append(f"{_origin(table, 'proxy')}{section}.proxy: {fault}")
    provider = dataclasses.replace(provider, proxy=proxy)
    if not provider.renews:
        provider = dataclasses.replace(provider, rotation="none")  # What is sent can be sent again.
    first = _secret(
        section, SECRET_KEYS, table, environ, problems, provider, needed=not provider.account_secret
    )
    return dataclasses.replace(
        provider,
        client_secret=first,
        next_secret=_secret(section, NEXT_KEYS, table, environ, problems, provider, needed=False),
    )


def _with_preset(
    section: str, table: dict[str, Found], problems: list[str]
) -> tuple[dict[str, Found], tuple[str, ...]]:
    """
    Return the settings over those of their preset.

    A preset's map and the file's are joined, entry by entry.
    """
    found = table.get("preset")
    if found is None or found.value == "":
        return table, ()
    preset = presets.PRESETS.get(found.value) if isinstance(found.value, str) else None
    if preset is None:
        problems.append(
            f"{found.origin}: {section}.preset: found {found.value!r};"
            f" {nearest(str(found.value), presets.PRESETS)}"
        )
        return table, ()
    joined = {key: Found(value, f"preset {preset.name}") for key, value in preset.settings.items()}
    grant = table.get("grant", joined.get("grant"))
    if grant is not None and grant.value != preset.settings.get("grant", "refresh_token"):
        for key in RENEWING_KEYS:  # Of another grant than the one that is asked for.
            joined.pop(key, None)
    for written in ("token_url", "issuer"):  # Either of them stands for both.
        if written in table:
            for place in PLACES:
                joined.pop(place, None)
            joined["account_parameters"] = _needed_parameters(preset, str(table[written].value))
    for key, own in table.items():
        below = joined.get(key)
        if below is not None and isinstance(own.value, dict) and isinstance(below.value, dict):
            own = dataclasses.replace(own, value=below.value | own.value)
        joined[key] = own
    return joined, tuple(key for key in preset.unconfirmed if key not in table)


def _needed_parameters(preset: presets.Preset, address: str) -> Found:
    """
    Return the preset's parameters of accounts that the provider's own address holds, too.

    The address is written in place of the preset's.
    """
    known = preset.settings.get("account_parameters", {})
    needed = {name: pattern for name, pattern in known.items() if f"{{{name}}}" in address}
    return Found(needed, f"preset {preset.name}")


def _origin(table: Mapping[str, Found], key: str) -> str:
    """Return where a setting stands; ``map entry`` finds the entry's own line."""
    name, _, entry = key.partition(" ")
    found = table.get(name)
    if found is None:
        return ""
    return f"{found.entries.get(entry, found.origin)}: "


def _faults(provider: Provider, table: Mapping[str, Found]) -> Iterator[tuple[str, str]]:
    """Yield the settings that contradict each other, as (setting, fault)."""
    yield from placeholders.faults(provider)
    yield from _address_faults(provider)
    yield from _proof_faults(provider)
    yield from _grant_faults(provider, table)
    yield from _request_faults(provider)
    yield from _error_faults(provider)
    yield from _life_faults(provider, table)
    yield from _account_secret_faults(provider, table)
    yield from _consent_faults(provider, table)
    if provider.connect_timeout_s > provider.timeout_s:
        yield (
            "connect_timeout_s",
            f"found {provider.connect_timeout_s:g}; allowed: at most timeout_s",
        )


def _request_faults(provider: Provider) -> Iterator[tuple[str, str]]:
    """Yield the settings that no request can be made of, or no answer read by."""
    if (excess := len(queue_of(provider.name, provider.client_id)) - QUEUE_BYTES_MAX) > 0:
        yield (
            "client_id",
            (
                f"is too long by {excess} for the name of a queue; allowed with this provider's"
                " name: less"
            ),
        )
    reserved = RESERVED if provider.renews else (*RESERVED, *GRANT_RESERVED)
    for name in (name for name in provider.parameters if name in reserved):
        yield f"parameters {name}", "the request says that by itself; allowed: any other name"
    for name, value in provider.headers.items():
        if not HEADER.fullmatch(name) or not value.isprintable() or not value.isascii():
            yield f"headers {name}", "found characters that no header has; allowed: printable ASCII"
    for name, path in provider.paths.items():
        if name not in PATHS:
            yield f"paths {name}", f"unknown member {name!r}; {nearest(name, PATHS)}"
        if not all(path.split(".")):
            yield f"paths {name}", f"found {path!r}; allowed: names with dots between them"
    for name in provider.extras:
        if name in TOKENS or name in (
            path for key, path in provider.paths.items() if key in TOKENS
        ):
            yield (
                "extras",
                (
                    f"found {name!r}, which is a secret: extras are not sealed; allowed: any other"
                    " member"
                ),
            )


def _error_faults(provider: Provider) -> Iterator[tuple[str, str]]:
    for key, word in provider.errors.items():
        if not ERROR_KEY.fullmatch(key):
            yield f"errors {key}", f"found {key[:80]!r}; allowed: 'STATUS', 'CODE' or 'STATUS CODE'"
        if word not in CONFIGURABLE:
            yield (
                f"errors {key}",
                f"found the class {word[:80]!r}; allowed is one of {', '.join(CONFIGURABLE)}",
            )


def _life_faults(provider: Provider, table: Mapping[str, Found]) -> Iterator[tuple[str, str]]:
    """Yield the settings that do not fit how long tokens live, and how they are used up."""
    if 0 < provider.not_before_s < provider.margin_s and "margin_s" in table:
        yield (
            "margin_s",
            (
                f"found {provider.margin_s:g}; allowed with not_before_s: at most"
                f" {provider.not_before_s:g}"
            ),
        )
    uses_up = provider.renews and provider.rotation != "none"
    if provider.orphan == "refresh" and (uses_up or provider.kills_access_token):
        found = "kills_access_token = true" if not uses_up else f"rotation = {provider.rotation!r}"
        yield (
            "orphan",
            (
                f"found 'refresh' with {found}; allowed with rotation = 'none' and without"
                " kills_access_token"
            ),
        )
    if provider.on_delete == "revoke" and not (provider.revocation_url or provider.issuer):
        yield (
            "on_delete",
            (
                "found 'revoke'; allowed only with revocation_url, or an issuer whose metadata"
                " name one"
            ),
        )
    if provider.life_s_max < provider.default_life_s and "life_s_max" in table:
        yield "life_s_max", f"found {provider.life_s_max:g}; allowed: at least default_life_s"
    if 0 < provider.consent_life_s <= provider.keep_alive_s:
        yield "keep_alive_s", f"found {provider.keep_alive_s:g}; allowed: less than consent_life_s"


def _account_secret_faults(
    provider: Provider, table: Mapping[str, Found]
) -> Iterator[tuple[str, str]]:
    if provider.account_secret and provider.auth not in SECRET_AUTHS:
        yield "account_secret", f"not allowed with auth = {provider.auth!r}, which sends no secret"
    for key in (
        key for key in (*SECRET_KEYS, *NEXT_KEYS) if provider.account_secret and key in table
    ):
        yield key, "not allowed with account_secret: each account brings its client's"


def _consent_faults(provider: Provider, table: Mapping[str, Found]) -> Iterator[tuple[str, str]]:
    """Yield the settings by which nobody could consent."""
    if not provider.renews:
        for key in (key for key in CONSENT_KEYS if key in table):
            yield key, f"not allowed with grant = {provider.grant!r}, which asks for no consent"
    for name in filter(is_of_consent, provider.authorization_parameters):
        yield (
            f"authorization_parameters {name}",
            "the request says that by itself; allowed: any other name",
        )
    if name := reserved_in(provider.authorization_url):
        yield (
            "authorization_url",
            (
                f"found {name!r} in its query, which the request says by itself; allowed: any other"
                " name"
            ),
        )
    if provider.consent_issuer and provider.issuer:
        yield "consent_issuer", "found beside issuer, which says the same; allowed: one of them"
    if not provider.consent_scope.isascii() or not provider.consent_scope.isprintable():
        yield "consent_scope", "found characters that no scope has; allowed: printable ASCII"


def _address_faults(provider: Provider) -> Iterator[tuple[str, str]]:
    if bool(provider.token_url) == bool(provider.issuer):
        yield (
            "",
            (
                f"found {'both' if provider.issuer else 'neither'}; allowed: one of token_url and"
                " issuer"
            ),
        )
    for key, url in (
        ("token_url", provider.token_url),
        ("issuer", provider.issuer),
        ("revocation_url", provider.revocation_url),
        ("authorization_url", provider.authorization_url),
        ("par_url", provider.par_url),
        ("device_url", provider.device_url),
        ("consent_issuer", provider.consent_issuer),
    ):
        plain = placeholders.plainly(url)
        if url and (
            fault := secret_url_fault(plain) or plain_fault(plain, allowed=provider.plain_http)
        ):
            yield key, fault
    if "?" in provider.issuer:
        yield (
            "issuer",
            f"found {provider.issuer!r}; allowed: an address without a query (RFC 8414, 2)",
        )


def _grant_faults(provider: Provider, table: Mapping[str, Found]) -> Iterator[tuple[str, str]]:
    """Yield the settings that do not fit the grant, or are missing for it."""
    grant = f"grant = {provider.grant!r}"
    if provider.renews:
        if provider.scope:
            yield (
                "scope",
                (
                    f"not allowed with {grant}, which is for what was consented to; allowed: leave"
                    " it out"
                ),
            )
    else:
        if "rotation" in table and provider.rotation != "none":
            yield (
                "rotation",
                (
                    f"found {provider.rotation!r} with {grant}, which uses nothing up; allowed:"
                    " leave it out"
                ),
            )
        for key in ("grace_s", "consent_life_s", "consent_fixed_s"):
            if getattr(provider, key):
                yield (
                    key,
                    f"not allowed with {grant}, which has no refresh token; allowed: leave it out",
                )
        if provider.on_delete == "revoke":
            yield (
                "on_delete",
                (
                    f"found 'revoke' with {grant}, which has no refresh token to revoke; allowed:"
                    " 'keep'"
                ),
            )
    if provider.grant == "client_credentials" and provider.auth == "none":
        yield (
            "auth",
            (
                f"found 'none' with {grant}, by which the client asks for itself; allowed: any that"
                " proves it"
            ),
        )
    yield from _assertion_faults(provider, table)
    if provider.grant == "token_exchange":
        if provider.subject_token_file and (
            fault := fault_of_secret_file(provider.subject_token_file)
        ):
            yield "subject_token_file", f"found {provider.subject_token_file!r}, {fault}"
        if not re.fullmatch(
            r"[a-z0-9_]{1,40}|[a-z][a-z0-9+.-]*:\S{1,200}", provider.subject_token_type
        ):
            yield (
                "subject_token_type",
                "found neither a name nor a URI; allowed: as access_token, jwt, or urn:…",
            )
    else:
        for key in (
            "subject_token",
            "subject_token_env",
            "subject_token_file",
            "subject_token_type",
        ):
            if key in table:
                yield key, f"not allowed with {grant}; allowed with grant = 'token_exchange'"


def _assertion_faults(provider: Provider, table: Mapping[str, Found]) -> Iterator[tuple[str, str]]:
    if provider.grant != "jwt_bearer":
        for key in ("jwt_issuer", "jwt_subject", "jwt_claims", "scope_in"):
            if key in table:
                yield (
                    key,
                    (
                        f"not allowed with grant = {provider.grant!r}; allowed with grant ="
                        " 'jwt_bearer'"
                    ),
                )
        if provider.auth in ASSERTION_AUTHS:
            yield (
                "auth",
                (
                    f"found {provider.auth!r}; allowed only with grant = 'jwt_bearer', whose"
                    " assertion is the proof"
                ),
            )
        return
    if not provider.jwt_key_file:
        yield "grant", "found 'jwt_bearer'; allowed only with jwt_key_file"
    reserved = (*CLAIMS_RESERVED, "scope") if provider.scope_in == "assertion" else CLAIMS_RESERVED
    for name in (name for name in provider.jwt_claims if name in reserved):
        yield f"jwt_claims {name}", "the assertion says that by itself; allowed: any other name"


def _proof_faults(provider: Provider) -> Iterator[tuple[str, str]]:
    cert, key = provider.tls_cert, provider.tls_key
    if bool(cert) != bool(key):
        yield (
            "tls_cert" if cert else "tls_key",
            "found one of tls_cert and tls_key; allowed: both or neither",
        )
    elif cert and (fault := tls.fault_of(cert, key)):
        yield "tls_cert", f"found {cert!r} with tls_key {key!r}: {fault}; allowed: two PEM files"
    elif not cert and provider.auth == "tls":
        yield "auth", "found 'tls'; allowed only with tls_cert and tls_key"
    if provider.tls_ca and (fault := tls.fault_of_authorities(provider.tls_ca)):
        yield "tls_ca", f"found {provider.tls_ca!r}: {fault}; allowed: a PEM file of certificates"
    if provider.auth == "private_key_jwt" and not provider.jwt_key_file:
        yield "auth", "found 'private_key_jwt'; allowed only with jwt_key_file"
    if provider.jwt_key_file and (
        fault := signing.fault_of_key(provider.jwt_key_file, provider.jwt_algorithm)
    ):
        yield (
            "jwt_key_file",
            (
                f"found {provider.jwt_key_file!r}: {fault}; allowed: a private key in PEM, not"
                " encrypted"
            ),
        )
    if (certificate := provider.jwt_cert_file) and (
        fault := signing.fault_of_certificate(
            certificate, provider.jwt_key_file, provider.jwt_algorithm
        )
    ):
        allowed = "the certificate in PEM of the key in jwt_key_file"
        yield "jwt_cert_file", f"found {certificate!r}: {fault}; allowed: {allowed}"


def _secret(
    section: str,
    keys: tuple[str, ...],
    table: Mapping[str, Found],
    environ: Mapping[str, str],
    problems: list[str],
    provider: Provider,
    *,
    needed: bool,
) -> Secret:
    """Read the secret that one of ``keys`` names."""
    written = [key for key in keys if key in table]
    # the environment and flags override the file's choice of key, too
    if any(table[key].text for key in written):
        written = [key for key in written if table[key].text]
    if provider.auth not in SECRET_AUTHS:
        problems.extend(
            f"{table[key].origin}: {section}.{key}: not allowed with auth = {provider.auth!r},"
            " which sends no secret"
            for key in written
        )
        return Secret()
    if len(written) == 1:
        return _secret_of(section, written[0], table[written[0]], environ, problems)
    if written or needed:
        where = _origin(table, written[0] if written else "")
        found = " and ".join(written) or "none of them"
        allowed = f"exactly one of {', '.join(keys)}" + (", or auth = 'none'" if needed else "")
        problems.append(f"{where}{section}: found {found}; allowed: {allowed}")
    return Secret()


def _subject_token(
    section: str,
    table: Mapping[str, Found],
    environ: Mapping[str, str],
    problems: list[str],
    grant: str,
) -> Secret:
    """Read the token that is exchanged for all of a provider's accounts, unless it is in a file."""
    written = [key for key in (*SUBJECT_KEYS, "subject_token_file") if key in table]
    if len(written) > 1:
        allowed = f"at most one of {', '.join((*SUBJECT_KEYS, 'subject_token_file'))}"
        problems.append(
            f"{_origin(table, written[0])}{section}: found {' and '.join(written)}; allowed:"
            f" {allowed}"
        )
        return Secret()
    if grant != "token_exchange" or not written or written == ["subject_token_file"]:
        return Secret()
    return _secret_of(section, written[0], table[written[0]], environ, problems)


def fault_of_secret_file(path: str) -> str:
    """Say what is wrong with a file that should hold a secret; empty: nothing."""
    try:
        return (
            "" if secret_of_file(path).strip() else "which is empty; allowed: a file with the token"
        )
    except OSError as error:
        return f"{tls.reason(error)}; allowed: a readable file with the token"


def _secret_of(
    section: str, key: str, found: Found, environ: Mapping[str, str], problems: list[str]
) -> Secret:
    """
    Read the client's secret itself, wherever the file says it is.

    One line end after it belongs to the file.
    """
    fault = "found no text; allowed: a text"
    if isinstance(found.value, str) and found.value:
        if not key.endswith(("_file", "_env")):
            return Secret(found.value)
        if key.endswith("_env"):
            if text := environ.get(found.value, ""):
                return Secret(text)
            fault = (
                f"found {found.value!r}, which the environment does not have; allowed: a variable"
                " that is set"
            )
        else:
            try:
                if text := secret_of_file(found.value).removesuffix("\n").removesuffix("\r"):
                    return Secret(text)
                fault = f"found {found.value!r}, which is empty; allowed: a file with the secret"
            except OSError as error:
                fault = (
                    f"found {found.value!r}: {tls.reason(error)}; allowed: a readable file with the"
                    " secret"
                )
    problems.append(f"{found.origin}: {section}.{key}: {fault}")
    return Secret()
