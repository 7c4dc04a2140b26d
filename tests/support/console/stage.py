"""A cluster with something on every page of the console, for its tests and its pictures."""

from __future__ import annotations

import json
import time
from typing import Any

import redis

from tidewarden.config.load import hash_generated

ADA = ("ada", "ada's secret for tests")
"""May see and administrate the queues ``mails.*`` alone."""
EVIL = "<img src=x onerror=window.evil=1><script>window.evil=1</script>"
PROVIDERS = """
[providers.shop]
token_url = "http://127.0.0.1:9/token"
client_id = "the-client"
client_secret = "the-clients-secret"
"""


def settings() -> str:
    """What stands in every node's file: a provider that answers nobody, and a narrow user."""
    user = (
        f'[[users]]\nname = "{ADA[0]}"\nsecret_hash = "{hash_generated(ADA[1])}"\n'
        'rights = ["admin:mails.*", "take:mails.*"]\n'
    )
    return PROVIDERS + user


def furnish(client: redis.Redis, *, pictures: bool = False) -> None:
    """
    Put tasks, locks, schedules and accounts; ``client`` holds some of them from then on.

    ``pictures``: nothing evil, and no accounts, of which a sandbox has better ones.
    """
    ask = client.execute_command
    for number in range(24):
        ask("Q.PUT", "mails.out", f"mail {number}", "ID", f"m{number:02}")
    for number in range(12):
        delay_ms = 600_000 * (number + 1)
        ask("Q.PUT", "mails.out", "later", "ID", f"later{number}", "DELAY", delay_ms)
    for number in range(40):
        ask("Q.PUT", "invoices", json.dumps({"invoice": number}), "ID", f"i{number}")
    _bury(ask, "mails.out", 5, "550 no such mailbox")
    _bury(ask, "mails.out", 1, "421 try again later" if pictures else EVIL)
    if not pictures:
        ask("Q.PUT", "mails.out", EVIL, "ID", "evil", "PRIORITY", 9)
    ask("Q.TAKE", "COUNT", 6, "LEASE", 3_600_000, "FROM", "invoices")
    for taken in ask("Q.TAKE", "COUNT", 9, "LEASE", 60_000, "FROM", "invoices"):
        ask("Q.ACK", "invoices", taken[1], taken[2])
    ask("L.ACQUIRE", "reports/daily", 3_600_000)
    ask("L.ACQUIRE", "import" if pictures else EVIL.replace(" ", "_"), 3_600_000)
    ask("S.PUT", "nightly", "CRON", "0 3 * * *", "invoices", "run")
    if pictures:
        _schedules(ask)
    now_s = int(time.time())
    for number in range(0 if pictures else 30):
        expires = (now_s + 1800 + 700 * number) * 1000
        grant = {"refresh_token": f"r{number}", "access_token": "a", "expires_at_ms": expires}
        ask("T.PUT", f"shop/customer-{number}", json.dumps(grant))


def _schedules(ask: Any) -> None:
    """Put schedules of several kinds, of which two have run."""
    berlin = ("TZ", "Europe/Berlin")
    ask("S.PUT", "reports.weekly", "CRON", "30 2 * * 1-5", *berlin, "reports", "weekly")
    ask("S.PUT", "invoices.sum", "CRON", "15 */2 * * *", *berlin, "reports", "sum")
    ask("S.PUT", "cleanup", "EVERY", 5_400_000, "CATCHUP", "none", "housekeeping", "x")
    ask("S.PUT", "pulse", "EVERY", 1_000, "probes", "ping")
    ask("S.PAUSE", "cleanup")
    for number in range(25):
        ask("S.PUT", f"tenant-{number:02}.sync", "CRON", f"{number} 4 * * *", "sync", "x")
    ask("S.RUN", "reports.weekly")
    for taken in ask("Q.TAKE", "FROM", "reports"):
        ask("Q.ACK", "reports", taken[1], taken[2])
    ask("S.RUN", "invoices.sum")
    _bury(ask, "reports", 1, "the ledger is locked")


def _bury(ask: Any, queue: str, count: int, reason: str) -> None:
    for taken in ask("Q.TAKE", "COUNT", count, "LEASE", 60_000, "FROM", queue):
        ask("Q.BURY", queue, taken[1], taken[2], "REASON", reason)
