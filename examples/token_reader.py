"""
Read an access token that Tidewarden keeps fresh.

    tidewarden up --sandbox 100                                  # accounts of a sandbox
    authorization server python examples/token_reader.py [PROVIDER/ACCOUNT]
"""

import sys
import time

from tidewarden.client import Client

account = sys.argv[1] if len(sys.argv) > 1 else "sandbox/user-000001"
with Client() as client:
    # At least ten seconds to live: with less it is refreshed first, once for all who ask.
    token = client.token(account, min_ttl_ms=10_000, wait_ms=5_000)
    print(
        f"{account}: {token.token_type} {token.access_token[:6]}…, {token.state}, generation"
        f" {token.generation}"
    )
    print(f"expires in {token.expires_at_ms / 1000 - time.time():.0f} s")
