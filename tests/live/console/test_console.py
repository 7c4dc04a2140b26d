"""The web console in a real browser, before a cluster with something on every page."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.cluster.harness import Cluster, cluster
from support.console.browser import (
    Visit,
    axe_source,
    browsing,
    needs_browser,
    serious,
    visit,
)
from support.console.stage import ADA, EVIL, furnish, settings

pytestmark = [needs_browser, pytest.mark.asyncio(loop_scope="module")]

PAGES = {
    "": "Nodes",
    "queues": "mails.out",
    "queues/mails.out": "550 no such mailbox",
    "queues/mails.out?state=buried&find=421*&in=reason": "that were looked at fit",
    "queues/mails.out/tasks/m23": "m23",
    "tokens": "shop",
    "tokens?find=customer-1": "shop/customer-1",
    "tokens/account/shop%2Fcustomer-3": "customer-3",
    "tokens/provider/shop": "shop",
    "schedules": "nightly",
    "schedules/next": "The next day",
    "schedules/schedule/nightly": "Next runs",
    "locks": "reports/daily",
    "consumers": "2 locks",
    "events": "Events",
    "traffic": "Traffic",
    "audit": "Audit",
}
"""Each page, and what is to be seen there."""
PHONE = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("console")
    with (
        cluster(request, folder, extra=settings()) as found,
        found.nodes["n0"].client() as consumer,
    ):
        furnish(consumer)
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    async with browsing() as found:
        yield found


def url_of(made: Cluster, name: str = "n0") -> str:
    return f"http://127.0.0.1:{made.nodes[name].base_port + 1}"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def logged_in(made: Cluster, browser: Any) -> AsyncIterator[Visit]:
    """Somebody who may do everything is logged in, in a page that stays."""
    async with visit(browser, url_of(made)) as found:
        await found.log_in("admin", made.secret)
        await found.is_in()
        yield found


@pytest_asyncio.fixture(loop_scope="module")
async def admin(request: pytest.FixtureRequest, logged_in: Visit) -> AsyncIterator[Visit]:
    """That page, at the overview; nothing was complained of in the end."""
    failed = request.session.testsfailed
    await logged_in.go("")
    yield logged_in
    complaints, logged_in.complaints = logged_in.complaints, []
    if request.session.testsfailed > failed:
        await logged_in.page.reload()
    assert complaints == []


async def test_a_login_and_a_logout(made: Cluster, browser: Any) -> None:
    async with visit(browser, url_of(made)) as guest:
        await guest.log_in("admin", "wrong")
        await guest.sees("WRONGPASS")
        assert await guest.page.context.cookies() == []
        await guest.log_in("admin", made.secret)
        await guest.is_in()
        (cookie,) = await guest.page.context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert await guest.page.evaluate("document.cookie") == ""
        assert made.secret not in await guest.page.content()
        assert made.secret not in guest.page.url
        await guest.page.get_by_role("button", name="Log out").click()
        await guest.page.get_by_label("Secret").wait_for()
        assert await guest.page.context.cookies() == []
        assert guest.complaints == []


async def test_a_console_of_which_a_part_did_not_come_is_loaded_again(
    made: Cluster, browser: Any
) -> None:
    async with visit(browser, url_of(made)) as guest:
        await guest.page.route("**/console/session.js", lambda route: route.abort(), times=1)
        await guest.page.goto(f"{guest.url}/")
        await guest.sees("A part of the console did not come.")
        await guest.page.get_by_label("Secret").wait_for()


async def test_plots_whose_library_did_not_come_are_drawn_with_the_next_figures(
    made: Cluster, browser: Any
) -> None:
    async with visit(browser, url_of(made)) as guest:
        await guest.page.route("**/vendor/uPlot*", lambda route: route.abort(), times=1)
        await guest.log_in("admin", made.secret)
        await guest.is_in()
        await guest.page.locator(".uplot").first.wait_for()
        assert guest.complaints == []


async def test_each_page_shows_what_there_is(admin: Visit) -> None:
    for where, expected in PAGES.items():
        await admin.go(where)
        seen = admin.page.locator("main").get_by_text(expected).locator("visible=true")
        await seen.first.wait_for()
        assert await admin.page.locator("main .note.wrong").count() == 0, where


async def test_what_others_wrote_is_shown_as_text(admin: Visit) -> None:
    for where in ("queues/mails.out", "queues/mails.out/tasks/evil", "locks"):
        await admin.go(where)
        shown = EVIL.replace(" ", "_") if where == "locks" else EVIL
        await admin.page.locator("main").get_by_text(shown).first.wait_for()
        assert await admin.page.evaluate("window.evil") is None
        assert await admin.page.locator("main img").count() == 0


async def test_buried_tasks_are_kicked_moved_and_deleted(made: Cluster, admin: Visit) -> None:
    page = admin.page
    await admin.go("queues/mails.out?state=buried")
    # a row's history is a table, too
    kick = page.get_by_role("button", name="Kick", exact=True)
    rows = page.locator("tr", has=kick).filter(has_text="550 no such mailbox")
    await rows.first.wait_for()
    assert await rows.count() == 5
    await rows.first.get_by_role("button", name="Kick", exact=True).click()
    await admin.sees("is ready.")
    await _until_count(rows, 4)
    await rows.first.get_by_role("button", name="Delete …").click()
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await admin.sees("is deleted.")
    await _until_count(rows, 3)
    await page.get_by_role("button", name="Move buried …").click()
    await page.get_by_label("To which queue").fill("mails.again")
    await page.get_by_label("At most how many").fill("1")
    await page.get_by_role("dialog").get_by_role("button", name="Move").click()
    await admin.sees("Moved to mails.again: 1.")
    why = page.locator("section", has=page.get_by_role("heading", name="Why tasks are buried"))
    await why.locator("tr").filter(has_text="550 no").get_by_role("button", name="Kick …").click()
    dialog = page.get_by_role("dialog")
    assert "buried for 550 no such mailbox" in await dialog.inner_text()
    await dialog.get_by_role("button", name="Kick").click()
    await _until_count(rows, 0)
    bearer = {"Authorization": f"Bearer admin:{made.secret}"}
    async with httpx.AsyncClient(base_url=url_of(made, "n1"), headers=bearer) as client:
        stats = (await client.get("/v1/queues/mails.out/stats")).json()
        assert stats["buried"] == 1
        stats = (await client.get("/v1/queues/mails.again/stats")).json()
        assert stats["ready"] == 1


async def test_buried_tasks_are_searched_chosen_and_edited(made: Cluster, admin: Visit) -> None:
    page = admin.page
    with made.nodes["n1"].client() as worker:
        ask = worker.execute_command
        for number in range(6):
            ask("Q.PUT", "broken", f'{{"to": {{"n": {number}}}}}', "ID", f"b{number}")
        for taken in ask("Q.TAKE", "COUNT", 6, "FROM", "broken"):
            reason = "odd" if int(taken[1][1:]) % 2 else "even"
            ask("Q.BURY", "broken", taken[1], taken[2], "REASON", reason)
    await admin.go("queues/broken")
    boxes = page.get_by_role("checkbox")
    await boxes.first.wait_for()
    assert await boxes.count() == 6
    await page.get_by_role("link", name="odd", exact=True).click()
    await admin.sees("3 tasks of the 6 that were looked at fit.")
    await page.get_by_label("Choose b1").check()
    await page.get_by_label("Choose b3").check()
    await page.get_by_role("button", name="Delete chosen …").click()
    await admin.sees("2 buried tasks that you chose")
    await page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await admin.sees("Deleted: 2.")
    await _until_count(boxes, 1)
    await page.get_by_label("Search").fill("")
    await page.get_by_label("Search").press("Enter")
    await _until_count(boxes, 4)
    await page.get_by_label("With a value").fill("$.to.n=4")
    await page.get_by_label("With a value").press("Enter")
    await _until_count(boxes, 1)
    await page.get_by_label("With a value").fill("n=4")
    await page.get_by_label("With a value").press("Enter")
    await admin.sees("BADARG: where is 'n=4'; allowed is $")
    await admin.go("queues/broken/tasks/b4")
    await page.get_by_role("button", name="Edit and put again …").click()
    dialog = page.get_by_role("dialog")
    assert await dialog.get_by_label("Payload").input_value() == '{"to": {"n": 4}}'
    await dialog.get_by_label("Payload").fill('{"to": {"n": 44}}')
    await dialog.get_by_role("button", name="Put again").click()
    await admin.sees("b4 is ready with its new payload.")
    assert made.nodes["n0"].say("Q.TAKE", "FROM", "broken")[0][3] == '{"to": {"n": 44}}'


async def test_a_queue_is_paused_resumed_and_purged(admin: Visit) -> None:
    page = admin.page
    await admin.go("queues/invoices")
    await page.get_by_role("button", name="Pause …").click()
    await page.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await admin.sees("Paused: takers get nothing")
    await page.get_by_role("button", name="Resume").click()
    await admin.sees("Takes go on.")
    await page.get_by_role("button", name="Purge …").click()
    dialog = page.get_by_role("dialog")
    assert await dialog.get_by_role("button", name="Remove them").is_disabled()
    await dialog.get_by_label(re.compile("Type")).fill("invoices")
    await dialog.get_by_role("button", name="Remove them").click()
    await admin.sees("Removed:")


async def test_a_consumer_is_seen_and_ended(made: Cluster, admin: Visit) -> None:
    page = admin.page
    with made.nodes["n1"].client() as stuck:
        stuck.execute_command("CLIENT", "SETNAME", "stuck-7")
        stuck.execute_command("Q.PUT", "stuck", "x", "ID", "s1", "LEASE", 3_600_000)
        assert len(stuck.execute_command("Q.TAKE", "FROM", "stuck")) == 1
        await admin.go("queues/stuck/tasks/s1")
        await admin.sees("stuck-7")
        await admin.go("consumers?queue=stuck")
        row = page.locator("tr").filter(has_text="stuck-7")
        await row.get_by_role("button", name="End stuck-7").click()
        dialog = page.get_by_role("dialog")
        assert await dialog.get_by_role("button", name="End it").is_disabled()
        await dialog.get_by_label(re.compile("Type")).fill("stuck-7")
        await dialog.get_by_role("button", name="End it").click()
        await admin.sees("stuck-7 is ended.")
        await _until_count(row, 0)
        assert made.nodes["n0"].say("Q.TAKE", "FROM", "stuck")[0][1] == "s1"


async def test_an_account_is_refreshed_now(admin: Visit) -> None:
    await admin.go("tokens/account/shop%2Fcustomer-3")
    await admin.page.get_by_role("button", name=re.compile("Refresh")).first.click()
    dialog = admin.page.get_by_role("dialog")
    if await dialog.count():
        await dialog.get_by_role("button", name=re.compile("Refresh")).click()
    await admin.page.locator("#told .note").first.wait_for()
    assert await admin.page.locator("#told .note.wrong").count() == 0


async def test_a_schedule_is_paused_and_resumed(admin: Visit) -> None:
    await admin.go("schedules")
    row = admin.page.locator("tr").filter(has_text="nightly")
    await row.get_by_role("button", name=re.compile("Pause")).click()
    dialog = admin.page.get_by_role("dialog")
    if await dialog.count():
        await dialog.get_by_role("button", name=re.compile("Pause")).click()
    await row.get_by_role("button", name=re.compile("Resume")).click()
    await row.get_by_role("button", name=re.compile("Pause")).wait_for()


async def test_a_schedule_is_run_and_what_became_of_it_is_shown(
    made: Cluster, admin: Visit
) -> None:
    with made.nodes["n0"].client() as client:
        client.execute_command("S.PUT", "by.hand", "CRON", "0 3 * * *", "by.hand", "run")
        client.execute_command("S.PUT", "pulse", "EVERY", 600_000, "by.hand", "beat")
        await admin.go("schedules")
        row = admin.page.locator("tr").filter(has_text="by.hand").filter(has_text="0 3 * * *")
        await row.get_by_role("button", name="Run now by.hand").dblclick()
        await row.get_by_text("ready").wait_for()
        ((_, task_id, lease, *_),) = client.execute_command("Q.TAKE", "COUNT", 9, "FROM", "by.hand")
        assert task_id.startswith("by.hand:run:"), "two clicks in a row are one run"
        client.execute_command("Q.ACK", "by.hand", task_id, lease)
        await row.get_by_text("done").wait_for()
        await row.get_by_role("link", name="by.hand").first.click()
        await admin.page.locator("main").get_by_text("somebody ran it").wait_for()
        assert await admin.page.locator("main ol li time").count() == 10
        await admin.go("schedules/next")
        often = admin.page.locator("tr").filter(has_text="pulse")
        await often.get_by_text("144").wait_for()
        hours = admin.page.get_by_role("region", name="Ticks by the hour")
        await hours.get_by_role("link", name="by.hand").wait_for()


async def test_who_may_less_sees_less_and_is_told(made: Cluster, browser: Any) -> None:
    async with visit(browser, url_of(made, "n1")) as ada:
        await ada.log_in(*ADA)
        await ada.is_in()
        await ada.go("queues")
        await ada.page.locator("main").get_by_text("mails.out").first.wait_for()
        text = await ada.text()
        assert "invoices" not in text
        for page in ("Tokens", "Locks", "Traffic"):
            assert await ada.page.get_by_role("link", name=page, exact=True).count() == 0
        await ada.go("queues/invoices")
        await ada.sees("DENIED")
        await ada.go("tokens")
        await ada.sees("DENIED")
        assert "customer-" not in await ada.text()
        assert ada.complaints == []


async def test_figures_are_those_that_the_user_may_see(made: Cluster) -> None:
    told = {}
    for name, secret in (("admin", made.secret), ADA):
        bearer = {"Authorization": f"Bearer {name}:{secret}"}
        async with httpx.AsyncClient(base_url=url_of(made), headers=bearer) as client:
            paths = ("overview", "history", "queues/mails.out/history", "forecast")
            told[name] = {path: await client.get(f"/v1/{path}") for path in paths}
            denied = await client.get("/v1/queues/invoices/history")
            assert denied.status_code == (200 if name == "admin" else 403)
            missing = await client.get("/v1/queues/mails.none/history")
            assert missing.status_code == 404
    whole, part = (told[name]["overview"].json() for name in ("admin", ADA[0]))
    assert whole["queues"]["queues"] > part["queues"]["queues"] > 0
    assert (sum(whole["tokens"].values()), part["tokens"]) == (30, {})
    assert {node["state"] for node in whole["nodes"]} == {"up"}
    forecast = told["admin"]["forecast"].json()
    assert sum(forecast["providers"]["shop"]) > 0
    assert len(forecast["providers"]["shop"]) == 24
    assert told[ADA[0]]["forecast"].status_code == 403


async def test_the_last_hour_begins_with_the_node(made: Cluster) -> None:
    bearer = {"Authorization": f"Bearer admin:{made.secret}"}
    async with httpx.AsyncClient(base_url=url_of(made), headers=bearer) as client:
        async with asyncio.timeout(40):
            series: dict[str, list[float | None]] = {}
            while not any(series.get("delayed", ())):
                found = (await client.get("/v1/queues/mails.out/history")).json()
                series = found["series"]
                await asyncio.sleep(0.2)
        assert {len(numbers) for numbers in series.values()} == {360}
        assert series["delayed"][0] is None
        assert (await client.get("/v1/history")).json()["series"]["requests"][0] is None


async def test_by_the_cookie_alone_another_site_changes_nothing(
    made: Cluster, admin: Visit
) -> None:
    (cookie,) = await admin.page.context.cookies()
    login = {cookie["name"]: cookie["value"]}
    path = "/v1/schedules/nightly"
    # what a form or a script of another site can have the browser send
    for headers in ({}, {"Origin": "https://evil.example", "Tidewarden-Console": "1"}):
        async with httpx.AsyncClient(base_url=url_of(made, "n2"), cookies=login) as client:
            assert (await client.get("/v1/whoami")).json()["user"] == "admin"
            answer = await client.delete(path, headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (403, "DENIED")
            assert (await client.get(path)).status_code == 200


async def test_it_is_used_by_keyboard_alone(made: Cluster, browser: Any) -> None:
    async with visit(browser, url_of(made)) as guest:
        page = guest.page
        await page.goto(guest.url)
        await page.get_by_label("User").wait_for()
        await page.keyboard.type("admin")
        await page.keyboard.press("Tab")
        await page.keyboard.type(made.secret)
        await page.keyboard.press("Enter")
        await guest.is_in()
        # the page's heading has the focus; the pages' names are before it
        for _ in range(20):
            await page.keyboard.press("Shift+Tab")
            if await page.evaluate("document.activeElement.textContent") == "Queues":
                break
        assert await page.evaluate("document.activeElement.getAttribute('href')") == "#/queues"
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert await page.evaluate(outline) != "none"
        await page.keyboard.press("Enter")
        await page.locator("main").get_by_text("mails.out").first.wait_for()


@pytest.mark.parametrize(
    ("scheme", "rules"),
    [("light", ()), ("dark", ("color-contrast", "link-in-text-block"))],
    ids=["light", "dark"],
)
async def test_axe_finds_nothing_serious(
    made: Cluster,
    browser: Any,
    tmp_path_factory: pytest.TempPathFactory,
    scheme: str,
    rules: tuple[str, ...],
) -> None:
    """By all rules once, and in the dark by those that look at colours."""
    axe = axe_source(tmp_path_factory.getbasetemp())
    found: dict[str, list[str]] = {}
    async with visit(browser, url_of(made), color_scheme=scheme) as guest:
        await guest.page.goto(guest.url)
        await guest.page.get_by_label("Secret").wait_for()
        found["login"] = await serious(guest.page, axe, *rules)
        await guest.log_in("admin", made.secret)
        await guest.is_in()
        for where in PAGES:
            await guest.go(where)
            found[where] = await serious(guest.page, axe, *rules)
    assert not {where: faults for where, faults in found.items() if faults}


async def test_on_a_phone_nothing_is_wider_than_the_screen(made: Cluster, browser: Any) -> None:
    async with visit(browser, url_of(made), viewport=PHONE) as guest:
        await guest.log_in("admin", made.secret)
        await guest.is_in()
        wide = {}
        for where in PAGES:
            await guest.go(where)
            wide[where] = await guest.page.evaluate("document.documentElement.scrollWidth")
        assert {where for where, width in wide.items() if width > PHONE["width"]} == set()


async def test_a_leader_that_is_killed_is_shown_and_the_page_goes_on(
    made: Cluster, browser: Any
) -> None:
    leader = made.leader()
    other = made.others(leader)[0]
    epoch = int(other.status()["epoch"])
    async with visit(browser, url_of(made, other.name)) as guest:
        await guest.log_in("admin", made.secret)
        await guest.sees(f"{leader.name} leads in epoch {epoch}")
        leader.kill()
        await guest.sees(f"leads under epoch {epoch + 1}")
        await guest.page.locator("tr").filter(has_text=leader.name).get_by_text("silent").wait_for()
        await guest.sees(f"{leader.name} is not heard any more")
        leader.start()
        await guest.sees(f"{leader.name} is heard again")
        assert guest.complaints == []


async def test_a_node_that_goes_is_told_and_waited_for(made: Cluster, browser: Any) -> None:
    node = made.others(made.leader())[0]
    async with visit(browser, url_of(made, node.name)) as guest:
        await guest.log_in("admin", made.secret)
        await guest.is_in()
        node.kill()
        await guest.sees(f"{node.name} does not answer since")
        node.start()
        await guest.page.get_by_text("does not answer since").wait_for(state="hidden")
        await guest.is_in()


async def _until_count(rows: Any, count: int) -> None:
    async with asyncio.timeout(20):
        while await rows.count() != count:
            await asyncio.sleep(0.05)
