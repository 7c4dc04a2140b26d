"""
Turn connections of Nango into lines for ``tidewarden token import``.

    psql "$NANGO_DATABASE_URL" -XAtc "$(python examples/nango_export.py --sql)" \\
      | python examples/nango_export.py > accounts.jsonl

Each line of standard input is a connection as JSON: a row of that query, whose credentials are
opened with the NANGO_ENCRYPTION_KEY of Nango's server, or an answer of Nango's API,
``GET /connections/ID?provider_config_key=KEY&refresh_token=true``. What has no refresh token is
left out, and named on standard error; the exit code is 1 if any line could not be read. It needs
the package cryptography, which tidewarden[server] brings.

docs/coming_from/cron-nango.md has the whole story.
"""

import argparse
import json
import os
import sys
from base64 import b64decode
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SQL = """\
SELECT jsonb_build_object(
         'provider_config_key', provider_config_key, 'connection_id', connection_id,
         'connection_config', connection_config, 'credentials', credentials,
         'credentials_iv', credentials_iv, 'credentials_tag', credentials_tag)
  FROM nango._nango_connections
 WHERE deleted IS NOT TRUE
   AND environment_id IN (SELECT id FROM nango._nango_environments WHERE name = 'prod')
 ORDER BY id"""


class Unreadable(Exception):
    """A line is no connection, or its credentials cannot be opened."""


def opened(row: dict[str, Any], key: bytes) -> dict[str, Any]:
    """Return a connection's credentials; a row of the database has them sealed by AES-256-GCM."""
    credentials: dict[str, Any] = row["credentials"]
    if "encrypted_credentials" not in credentials:
        return credentials
    if not key:
        raise Unreadable("its credentials are encrypted: set NANGO_ENCRYPTION_KEY")
    sealed = b64decode(credentials["encrypted_credentials"]) + b64decode(row["credentials_tag"])
    try:
        found: dict[str, Any] = json.loads(
            AESGCM(key).decrypt(b64decode(row["credentials_iv"]), sealed, None)
        )
    except InvalidTag:
        raise Unreadable("NANGO_ENCRYPTION_KEY is not the key it was encrypted with") from None
    return found


def account(
    row: dict[str, Any], credentials: dict[str, Any], names: dict[str, str], wanted: list[str]
) -> dict[str, Any]:
    """Return a connection as a line of ``tidewarden token import``."""
    raw = credentials.get("raw") or {}
    config = row.get("connection_config") or {}
    override = credentials.get("config_override") or {}
    key = row["provider_config_key"]
    found = {
        "provider": names.get(key, key),
        "account": row["connection_id"],
        "refresh_token": credentials.get("refresh_token"),
        "access_token": credentials.get("access_token"),
        "expires_at": credentials.get("expires_at"),
        "scope": raw.get("scope") if isinstance(raw.get("scope"), str) else None,
        # An account of another client is refused by the import, not refreshed with the wrong one.
        "client": override.get("client_id"),
        "parameters": {name: config[name] for name in wanted if name in config},
    }
    return {name: value for name, value in found.items() if value}


def main() -> int:
    """Read connections, write accounts; return the exit code."""
    options = argparse.ArgumentParser(description=(__doc__ or "").strip().split("\n")[0])
    options.add_argument("--sql", action="store_true", help="print the query, and end")
    options.add_argument(
        "--provider", action="append", default=[], metavar="NANGO=OURS",
        help="the provider of an integration that has another name here",
    )  # fmt: skip
    options.add_argument(
        "--parameter", action="append", default=[], metavar="NAME",
        help="a member of connection_config that the provider's settings need",
    )  # fmt: skip
    given = options.parse_args()
    if given.sql:
        print(SQL)
        return 0
    names = dict(pair.split("=", 1) for pair in given.provider)
    key = b64decode(os.environ.get("NANGO_ENCRYPTION_KEY", ""))
    if len(key) not in (0, 32):
        options.error(f"NANGO_ENCRYPTION_KEY has {len(key)} bytes in base64; it should have 32")
    unreadable = 0
    for number, line in enumerate(filter(str.strip, sys.stdin), 1):
        try:
            row = json.loads(line)
            who = f"{row['provider_config_key']}/{row['connection_id']}"
            credentials = opened(row, key)
        except (Unreadable, ValueError, LookupError, TypeError) as error:
            unreadable += 1
            why = error if isinstance(error, Unreadable) else "is no connection of Nango"
            print(f"line {number}: {why}", file=sys.stderr)
            continue
        if credentials.get("type") != "OAUTH2" or not credentials.get("refresh_token"):
            print(f"left out: {who} ({credentials.get('type')}): no refresh token", file=sys.stderr)
            continue
        print(json.dumps(account(row, credentials, names, given.parameter)))
    return 1 if unreadable else 0


if __name__ == "__main__":
    sys.exit(main())
