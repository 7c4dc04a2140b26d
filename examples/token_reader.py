"""
Read an access token that Tidewarden keeps fresh.

    tidewarden up --sandbox 100             # with accounts of a sandbox authorization server
    python examples/token_reader.py [PROVIDER/ACCOUNT]
"""

import sys
import time

from tidewarden.client import Client

account = sys.argv[1] if len(sys.argv) > 1 else "sandbox/user-000001"
with Client() as client:
    # A token with less than ten seconds to live is refreshed first, once for all readers.
    token = client.token(account, min_ttl_ms=10_000, wait_ms=5_000)
    print(
        f"{account}: {token.token_type} {token.access_token[:6]}…, {token.state}, generation"
        f" {token.generation}"
    )
    print(f"expires in {token.expires_at_ms / 1000 - time.time():.0f} s")
