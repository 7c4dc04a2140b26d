"""
Makes the pictures of the console in ``docs/screens``.

``.venv/bin/python -m support.console.screens`` in ``tests/``, by hand; it takes two minutes and
needs Debian's chromium.
"""

from __future__ import annotations

import asyncio
import base64
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import redis
from support.cluster.running_up import Running
from support.console.browser import Visit, browsing, visit
from support.console.stage import furnish

from benchmarks.ports import free_ports
from tidewarden.client.replies import mapped

FOLDER = Path(__file__).parents[3] / "docs" / "screens"
PAGES = {
    "overview": "",
    "queues": "queues",
    "queue": "queues/mails.out",
    "task": "queues/mails.out/tasks/m01",
    "tokens": "tokens",
    "account": "tokens/account/{account}",
    "provider": "tokens/provider/sandbox",
    "schedules": "schedules",
    "schedule": "schedules/schedule/invoices.sum",
    "next-day": "schedules/next",
    "locks": "locks",
    "consumers": "consumers",
    "events": "events",
    "traffic": "traffic",
    "audit": "audit",
}
SIZES = {"wide": {"width": 1280, "height": 800}, "phone": {"width": 390, "height": 844}}
WORK_S = 100.0
QUALITY = 0.72
AS_WEBP = """async ([png, quality]) => {
  const image = new Image();
  image.src = "data:image/png;base64," + png;
  await image.decode();
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  canvas.getContext("2d").drawImage(image, 0, 0);
  return canvas.toDataURL("image/webp", quality).split(",")[1];
}"""


def work(client: redis.Redis) -> None:
    """Give the last hour something to show."""
    until = time.monotonic() + WORK_S
    number = 0
    while time.monotonic() < until:
        number += 1
        for _ in range(number % 7 + 1):
            client.execute_command("Q.PUT", "invoices", "x")
        for taken in client.execute_command("Q.TAKE", "COUNT", 4, "FROM", "invoices"):
            client.execute_command("Q.ACK", "invoices", taken[1], taken[2])
        time.sleep(0.05)


async def picture(guest: Visit, press: Any, path: Path) -> None:
    """Keep what is to be seen, small."""
    png = base64.b64encode(await guest.page.screenshot()).decode()
    webp = await press.evaluate(AS_WEBP, [png, QUALITY])
    path.write_bytes(base64.b64decode(webp))


async def make(url: str, secret: str, account: str) -> None:
    """Visit each page, at each size; the overview in the dark, too."""
    FOLDER.mkdir(exist_ok=True)
    async with browsing() as browser:
        press = await (await browser.new_context()).new_page()
        for size, viewport in SIZES.items():
            for scheme in ("light", "dark"):
                async with visit(browser, url, viewport=viewport, color_scheme=scheme) as guest:
                    await guest.log_in("admin", secret)
                    await guest.is_in()
                    pages = (
                        PAGES
                        if scheme == "light"
                        else {"overview-dark": "", "queue-dark": PAGES["queue"]}
                    )
                    for name, where in pages.items():
                        await guest.go(where.format(account=account.replace("/", "%2F")))
                        await guest.page.wait_for_timeout(700)  # what is drawn, is drawn
                        await picture(guest, press, FOLDER / f"{name}-{size}.webp")
                    print(size, scheme, guest.complaints or "no complaints")


def main() -> None:
    """Run a cluster with a sandbox, let it work for a minute, and take the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        base = free_ports(40)
        up = Running(
            "--nodes", "3", "--sandbox", "300", "--base-port", str(base), "--data-dir", folder
        )
        try:
            while not up.said("accounts imported"):
                time.sleep(0.2)
            secret = (Path(folder) / "secrets" / "admin.secret").read_text().strip()
            client = redis.Redis(port=base, username="admin", password=secret)
            furnish(client, pictures=True)
            work(client)
            account = client.execute_command("T.LIST", "PROVIDER", "sandbox", "COUNT", 1)
            asyncio.run(make(f"http://127.0.0.1:{base + 1}", secret, named(account)))
        finally:
            up.stop(signal.SIGINT)


def named(listed: Any) -> str:
    """The first account of a list."""
    return str(mapped(listed[0][0])["account"])


if __name__ == "__main__":
    main()
