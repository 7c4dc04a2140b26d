"""A real browser at a node's console, and what it complains of meanwhile."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or ""
WAIT_MS = 30_000
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
needs_browser = pytest.mark.skipif(not CHROMIUM, reason="there is no /usr/bin/chromium here")


@asynccontextmanager
async def browsing() -> AsyncIterator[Any]:
    """A browser without a window."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=OPTIONS)
        try:
            yield browser
        finally:
            await browser.close()


class Visit:
    """A page in a context of its own; ``complaints``: errors of scripts, CSP and requests."""

    def __init__(self, page: Any, url: str) -> None:
        self.page = page
        self.url = url
        self.complaints: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("pageerror", lambda error: self.complaints.append(f"script: {error}"))
        page.on("console", self._said)

    def _said(self, message: Any) -> None:
        # that a request was refused, or had no answer, the browser says by itself
        if message.type in ("error", "warning") and "Failed to load resource" not in message.text:
            self.complaints.append(f"console: {message.text}")

    async def go(self, where: str) -> None:
        """Open a page of the console, and wait until it has asked and shown."""
        await self.page.goto(f"{self.url}/#/{where}")
        await self.page.locator("main h1").first.wait_for()
        await self.page.get_by_text("Asking …").wait_for(state="detached")

    async def log_in(self, user: str, secret: str) -> None:
        """Fill in the form; the page behind it comes when it is right."""
        await self.page.goto(f"{self.url}/")
        await self.sees("Secret")
        await self.page.get_by_label("User").fill(user)
        await self.page.get_by_label("Secret").fill(secret)
        await self.page.get_by_role("button", name="Log in").click()

    async def sees(self, text: str) -> None:
        """Wait until the text is to be seen."""
        from playwright.async_api import TimeoutError as TooLate

        try:
            await self.page.get_by_text(text).locator("visible=true").first.wait_for()
        except TooLate:
            told = f"{self.page.url}: {await self.text()}\n{self.complaints}"
            raise AssertionError(f"{text!r} is not to be seen at {told}") from None

    async def is_in(self) -> None:
        """Wait until the login has led to the overview, and that is there."""
        await self.page.get_by_role("heading", name="Overview", exact=True).wait_for()
        await self.page.get_by_role("heading", name="Nodes", exact=True).wait_for()

    async def text(self) -> str:
        """What the page says."""
        return str(await self.page.locator("body").inner_text())


@asynccontextmanager
async def visit(browser: Any, url: str, **options: Any) -> AsyncIterator[Visit]:
    """A visit as of somebody who comes for the first time."""
    context = await browser.new_context(**options)
    try:
        yield Visit(await context.new_page(), url)
    finally:
        await context.close()


def axe_source(folder: Path) -> str:
    """axe-core, fetched by npm. Skips the test where that cannot be had."""
    if shutil.which("npm") is None:
        pytest.skip("there is no npm here, which fetches axe-core")
    fetched = subprocess.run(
        ["npm", "install", "--silent", "--no-audit", "--no-fund", "axe-core@4"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if fetched.returncode:
        pytest.skip(f"npm could not fetch axe-core: {fetched.stderr[-200:]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


async def serious(page: Any, axe: str, *rules: str) -> list[str]:
    """What axe-core finds serious or critical on the page: by all its rules, or by these."""
    if not await page.evaluate("() => 'axe' in window"):  # It stays where only the hash changes.
        await page.evaluate(f"() => {{ {axe}; window.axe = axe; }}")
    options: dict[str, Any] = {"resultTypes": ["violations"]}
    if rules:
        options["runOnly"] = {"type": "rule", "values": rules}
    found = await page.evaluate("(options) => window.axe.run(document, options)", options)
    return [
        f"{one['id']}: {one['help']}: {one['nodes'][0]['html'][:160]}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]
