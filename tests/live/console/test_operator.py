"""
What an operator asks in the night is answered by the console alone, within two clicks of the
overview.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio
from support.cluster.harness import Cluster, cluster, until
from support.console.browser import Visit, browsing, needs_browser, visit
from support.console.stage import ADA, settings

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module")]

REASONS = ("550 no such mailbox", "421 try again later", "timeout of smtp.example")
BURIED, FLOOD, CLICKS = 700, 3000, 2


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A cluster in trouble: dead letters, a late queue, a flood, a provider that is away."""
    with (
        cluster(request, tmp_path_factory.mktemp("operator"), extra=settings()) as found,
        found.nodes["n1"].client() as biller,
    ):
        disturb(found)
        biller.execute_command("CLIENT", "SETNAME", "biller-7")
        biller.execute_command("Q.TAKE", "LEASE", 3_600_000, "FROM", "invoices")
        yield found


def disturb(made: Cluster) -> None:
    with made.nodes["n0"].client() as client:
        ask = client.execute_command
        for number in range(BURIED):
            ask("Q.PUT", "mails.out", "x", "ID", f"m{number}")
        for _ in range(0, BURIED, 100):
            for number, taken in enumerate(ask("Q.TAKE", "COUNT", 100, "FROM", "mails.out")):
                reason = REASONS[0 if number < 60 else 1 if number < 90 else 2]
                ask("Q.BURY", "mails.out", taken[1], taken[2], "REASON", reason)
        for number in range(40):
            ask("Q.PUT", "invoices", str(number), "ID", f"i{number}")
        for number in range(5):
            grant = {"refresh_token": f"r{number}"}
            ask("T.PUT", f"shop/customer-{number}", json.dumps(grant))
    with made.nodes["n2"].client(username=ADA[0], password=ADA[1]) as ada:
        for _ in range(FLOOD):
            ada.execute_command("Q.STATS", "mails.out")
    accounts = "/v1/tokens?provider=shop&state=failing"
    until(lambda: len(made.nodes["n0"].http(accounts).json()["accounts"]) == 5)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def seat(made: Cluster) -> AsyncIterator[Visit]:
    url = f"http://127.0.0.1:{made.nodes['n0'].base_port + 1}"
    async with browsing() as browser, visit(browser, url) as found:
        await found.log_in("admin", made.secret)
        await found.is_in()
        yield found
        assert found.complaints == []


@pytest_asyncio.fixture(loop_scope="module")
async def operator(seat: Visit) -> Visit:
    """Who looks at the overview."""
    await seat.go("")
    return seat


async def click(operator: Visit, *names: str) -> None:
    """Follow links of these names, one after the other."""
    assert len(names) <= CLICKS
    for name in names:
        link = operator.page.get_by_role("link", name=name, exact=True)
        await link.locator("visible=true").first.click()


async def row(operator: Visit, text: str) -> list[str]:
    """The cells of the first row that has just that text somewhere, once it is there."""
    part = operator.page.get_by_text(text, exact=True)
    found = operator.page.locator("main tr").filter(has=part).first
    await found.wait_for()
    return [cell.strip() for cell in await found.locator("th, td").all_inner_texts()]


async def test_is_it_healthy(operator: Visit) -> None:
    await operator.sees(f"{BURIED} tasks of mails.out are buried")
    await operator.sees("3 nodes, 3 up")


async def test_who_leads(made: Cluster, operator: Visit) -> None:
    leader = made.leader()
    found = await row(operator, "leader")
    assert found[0].startswith(leader.name)
    assert found[3] == str(leader.status()["epoch"])


async def test_which_queue_is_late(operator: Visit) -> None:
    await click(operator, "Queues")
    late = await row(operator, "invoices")
    assert re.search(r"\d (s|min)", late[5])
    assert (await row(operator, "mails.out"))[5] == "–"


async def test_who_floods(operator: Visit) -> None:
    await click(operator, "Traffic")
    found = await row(operator, ADA[0])
    # As the counters have it: each request, and the login.
    assert FLOOD <= int(found[1].replace(",", "")) <= FLOOD + 10
    first = await operator.page.locator("main tbody tr").first.inner_text()
    assert first.startswith(ADA[0])


async def test_why_an_account_fails(operator: Visit) -> None:
    await click(operator, "Tokens", "shop/customer-3")
    await operator.sees("Connection refused")
    await operator.sees("If nobody does anything")


async def test_whether_a_provider_recovers(operator: Visit) -> None:
    await click(operator, "Tokens", "shop")
    await operator.sees("shop does not answer since")
    await operator.sees("will ask again")


async def test_which_errors_are_behind_buried_tasks(operator: Visit) -> None:
    await click(operator, "mails.out")
    counted = {reason: int((await row(operator, reason))[0]) for reason in REASONS}
    assert counted == dict(zip(REASONS, (420, 210, 70), strict=True))
    assert Counter(counted).total() == BURIED


async def test_who_holds_a_task(operator: Visit) -> None:
    await click(operator, "Queues", "1")  # of the tasks that are leased
    task, holder, where, node, *_ = await row(operator, "i0")
    assert (task, holder, node) == ("i0", "admin biller-7", "n1")
    assert where.startswith("127.0.0.1")
