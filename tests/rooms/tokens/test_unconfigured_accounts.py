"""Accounts of a provider that was renamed, or has another client now."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from support.cluster.harness import background
from support.inspect import accounts_of, is_running, queue_names_of
from support.tokens import harness

from tidewarden.clock import SystemClock
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

        def beside(*configured: str) -> UnconfiguredAccounts:
            return UnconfiguredAccounts(
                accounts_of(side.tokens),
                side.queues.catalog.names,
                lambda: configured,
                SystemClock(),
            )

        side.go()
        await harness.eventually(lambda: is_running(side.tokens))
        queues = queue_names_of(side.tokens).values()
        none, some = beside(*queues), beside("_tokens:p:another")
        async with background(none.run(), some.run()):
            await harness.eventually(lambda: some.warning())
            assert some.warning().startswith("2 accounts in the store are not refreshed")
            (line,) = said()
            assert line.startswith(
                "2 accounts of the provider p and its client c0 lie in the store"
            )
            await side.tokens.delete("p/a")
            some.change()
            await harness.eventually(lambda: some.warning().startswith("1 account"))
            assert len(said()) == 1  # Once is enough.
        assert none.warning() == ""

        async def away() -> list[str]:
            raise StoreDown("not now")

        lost = UnconfiguredAccounts(accounts_of(side.tokens), away, list, SystemClock())
        with caplog.at_level(logging.DEBUG, "tidewarden.tokens"):
            async with background(lost.run()):
                await harness.eventually(lambda: "were not looked for: not now" in caplog.text)
