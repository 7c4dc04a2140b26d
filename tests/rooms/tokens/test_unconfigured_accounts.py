"""Accounts of a provider that was renamed, or has another client now."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from support.inspect import accounts_of, is_running, queue_names_of
from support.tokens import harness

from tidewarden.errors import StoreDown
from tidewarden.tokens.accounts.unconfigured_accounts import UnconfiguredAccounts


async def test_accounts_that_nobody_refreshes_are_named_at_the_start(
    valkey: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chosen = harness.provider("http://127.0.0.1:9/")
    async with harness.node(valkey, tmp_path, chosen, go=False) as side:
        for name in "ab":
            await side.tokens.put(
                f"p/{name}", {"refresh_token": name, "access_token": "x", "expires_in": 3600}
            )
        await side.queues.admin.settings(
            "_tokens:q:none"
        )  # Without accounts it is nobody's concern.

        def said() -> list[str]:
            return [
                record.getMessage()
                for record in caplog.records
                if "lie in the store" in record.getMessage()
            ]

        side.go()
        await harness.eventually(lambda: is_running(side.tokens))
        await UnconfiguredAccounts(
            accounts_of(side.tokens),
            side.queues.catalog.names,
            queue_names_of(side.tokens).values(),
        ).say()
        assert said() == []
        await UnconfiguredAccounts(
            accounts_of(side.tokens), side.queues.catalog.names, ["_tokens:p:another"]
        ).say()
        (line,) = said()
        assert line.startswith("2 accounts of the provider p and its client c0 lie in the store")

        async def away() -> list[str]:
            raise StoreDown("not now")

        with caplog.at_level(logging.DEBUG, "tidewarden.tokens"):
            await UnconfiguredAccounts(accounts_of(side.tokens), away, []).say()
        assert "were not looked for: not now" in caplog.text
