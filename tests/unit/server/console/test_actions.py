"""
What the console's own code sends for what a person chooses, shows of times, and lets be clicked.

It runs without a browser: what draws is replaced by what answers for the person.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

STATIC = Path(__file__).parents[4] / "tidewarden/server/console/static"
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node is not here")

DRAWS = {
    "dialog.js": """
        export const ask = async () => globalThis.chosen;
        export const act = async (work, done) => { await work(); return true; };
        export const toldOf = (error) => String(error);
        export const tell = () => null;
        export const inPieces = async (piece, text) => {
          let [all, left] = [0, 1];
          while (left) {
            const { done, left: rest } = await piece();
            [all, left] = [all + done, done && rest];
          }
          return text(all, left);
        };
    """,
    "dom.js": "export const h = () => null; export const show = () => null;",
}
BEGIN = """
    globalThis.sent = [];
    globalThis.answers = [];
    globalThis.document = new EventTarget();
    globalThis.fetch = async (where, { method, body, headers }) => {
      sent.push([method, where, body === undefined ? null : JSON.parse(body), headers]);
      return new Response(answers.shift() ?? "{}");
    };
"""


def run(folder: Path, code: str) -> Any:
    """What the code tells, by ``tell(value)``, with the console's modules beside it."""
    shutil.copytree(STATIC, folder / "static")
    for name, text in DRAWS.items():
        (folder / "static" / name).write_text(text)
    told = "const tell = (value) => { console.log(JSON.stringify(value)); process.exit(); };"
    (folder / "static" / "run.mjs").write_text(BEGIN + told + code)
    argv = ["node", "--no-warnings", str(folder / "static" / "run.mjs")]
    made = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60)
    return json.loads(made.stdout)


QUEUE = "/v1/queues/a%2Fb%20c"
# What is called, what is chosen in its dialog, and what is sent.
CHOICES: tuple[tuple[str, dict[str, str], list[Any]], ...] = (
    ("purge(queue, {})", {"state": "buried"}, ["POST", f"{QUEUE}/purge", {"state": "buried"}]),
    ("drop(queue, {})", {}, ["DELETE", f"{QUEUE}?force=true", None]),
    ("purge(queue, {})", {"state": "all"}, ["POST", f"{QUEUE}/purge", {}]),
    ("pause(queue)", {"minutes": "2"}, ["POST", f"{QUEUE}/pause", {"ms": 120_000}]),
    ("pause(queue)", {"minutes": ""}, ["POST", f"{QUEUE}/pause", {}]),
    ("deleteTask(queue, 'x/1', 'ready')", {}, ["DELETE", f"{QUEUE}/tasks/x%2F1", None]),
    ("deleteTask(queue, 'x', 'leased')", {}, ["DELETE", f"{QUEUE}/tasks/x?force=true", None]),
    ("kickOne(queue, 'x')", {}, ["POST", f"{QUEUE}/buried/kick", {"id": "x"}]),
    (
        "kickMany(queue)",
        {"reason": "550", "count": "2"},
        ["POST", f"{QUEUE}/buried/kick", {"reason_prefix": "550", "count": 2}],
    ),
    (
        "moveMany(queue)",
        {"to": "d", "reason": "", "count": ""},
        ["POST", f"{QUEUE}/buried/move", {"to": "d", "all": True}],
    ),
    (
        "kickMany(queue, {reason: ''})",
        {},
        ["POST", f"{QUEUE}/buried/kick", {"all": True, "reason": ""}],
    ),
    (
        "deleteMany(queue, {reason: '\\ufffdPNG'})",
        {},
        ["POST", f"{QUEUE}/buried/delete", {"all": True, "reason": "\ufffdPNG"}],
    ),
    (
        "moveMany(queue, {ids: ['a', 'b']})",
        {"to": "d"},
        ["POST", f"{QUEUE}/buried/move", {"to": "d", "ids": ["a", "b"]}],
    ),
    (
        "editTask(queue, {id: 'x', payload: 'old', buried_ms: 7})",
        {"payload": " new "},
        ["POST", f"{QUEUE}/buried/kick", {"id": "x", "payload": " new ", "buried_ms": 7}],
    ),
    (
        "changeSetting(queue, {capacity: 5})",
        {"name": "capacity", "value": "7"},
        ["PATCH", QUEUE, {"capacity": 7}],
    ),
)


CONSUMERS: tuple[tuple[dict[str, Any], list[Any]], ...] = (
    ({"session": "u-1"}, ["DELETE", "/v1/sessions/u-1", None]),
    (
        {"session": "", "client": 7},
        ["POST", "/v1/consumers/close", {"client": 7, "node": "n0"}],
    ),
)


@needs_node
@pytest.mark.parametrize(("row", "sent"), CONSUMERS)
def test_a_consumer_is_ended_by_its_session_or_its_number(
    tmp_path: Path, row: dict[str, Any], sent: list[Any]
) -> None:
    whole = {"id": "x", "name": "w", "user": "bob", "node": "n0", "tasks": 0, "client": 0} | row
    code = f"""
        import {{ end }} from "./pages/consumers.js";
        globalThis.chosen = {{}};
        await end({json.dumps(whole)});
        tell(sent.map((one) => one.slice(0, 3)));
    """
    assert run(tmp_path, code) == [sent]


@needs_node
def test_the_rate_of_a_consumer_is_what_its_counter_gained(tmp_path: Path) -> None:
    code = """
        import { ratesOf } from "./pages/consumers.js";
        const rows = [{ id: "a", settled: 30 }, { id: "b", settled: 5 }, { id: "c", settled: 1 }];
        const before = { at_ms: Date.now() - 2000, settled: new Map([["a", 10], ["b", 9]]) };
        tell([[...ratesOf(rows, null)], [...ratesOf(rows, before)].map(([id, rate]) =>
          [id, Math.round(rate)])]);
    """
    assert run(tmp_path, code) == [[], [["a", 10], ["b", 0]]]


@needs_node
def test_a_double_click_is_one_run_however_soon_the_first_click_is_answered(tmp_path: Path) -> None:
    code = """
        import { runNow } from "./pages/schedules.js";
        await Promise.all([runNow("a/b"), runNow("a/b"), runNow("other")]);
        await runNow("a/b");
        const now = Date.now;
        Date.now = () => now() + 1_001;
        await runNow("a/b");
        tell(sent.map(([method, where, body]) => [method, where, body.id]));
    """
    first, second, other, third, later = run(tmp_path, code)
    assert first == second == third
    assert first[:2] == ["POST", "/v1/schedules/a%2Fb/run"]
    assert len({first[2], other[2], later[2]}) == 3
    assert all(len(one[2].encode()) <= 60 for one in (first, other, later))


@needs_node
def test_the_ticks_of_the_next_day_are_shown_by_the_hour(tmp_path: Path) -> None:
    code = """
        globalThis.localStorage = { getItem: () => "utc" };
        import("./pages/schedules_next.js").then(({ byHour }) => {
          const at = (text, name) => ({ name, at_ms: Date.parse(`2026-11-28T${text}Z`) });
          const ticks = [at("01:30:00", "a"), at("01:59:59", "b"), at("02:00:00", "a")];
          tell(byHour(ticks).map(([hour, list]) => [hour, list.map((one) => one.name)]));
        });
    """
    assert run(tmp_path, code) == [["2026-11-28 01:00", ["a", "b"]], ["2026-11-28 02:00", ["a"]]]


@needs_node
@pytest.mark.thorough
def test_what_is_chosen_is_what_is_sent(tmp_path: Path) -> None:
    calls = "".join(
        f"globalThis.chosen = {json.dumps(chosen)}; await actions.{call};"
        for call, chosen, _ in CHOICES
    )
    code = 'const actions = await import("./pages/queue_actions.js"); const queue = "a/b c";'
    sent = run(tmp_path, f"{code}{calls}tell(sent);")
    assert [one[:3] for one in sent] == [expected for _, _, expected in CHOICES]
    assert {one[3]["Tidewarden-Console"] for one in sent} == {"1"}


@needs_node
@pytest.mark.thorough
def test_a_user_is_shown_what_the_rights_allow(tmp_path: Path) -> None:
    rights = {"rights": ["admin:mails.*", "token:read:shop/*"]}
    told = run(
        tmp_path,
        f"""
        answers.push({json.dumps(json.dumps(rights))});
        const {{ learn, may, mayAll }} = await import("./session.js");
        const before = may("admin");
        await learn();
        tell([before, may("admin", "mails.out"), may("admin", "invoices"), may("put", "mails.out"),
              may(["put", "admin"]), may("token:read", "shop/a"), may("token:read", "bank/a"),
              may("token:write", "shop/a"), mayAll("admin")]);
        """,
    )
    assert told == [False, True, False, False, True, True, False, False, False]


@needs_node
def test_what_one_request_left_the_next_ones_do(tmp_path: Path) -> None:
    """What is buried meanwhile, as by workers that fail at once, is not dealt with for ever."""
    told = run(
        tmp_path,
        """
        const actions = await import("./pages/queue_actions.js");
        let at_ms = 0;
        performance.now = () => (at_ms += 1000.5);
        answers.push('{"kicked": 3, "left": 90}', '{"kicked": 2, "left": 88}');
        globalThis.chosen = { reason: "", count: "5" };
        await actions.kickMany("q");
        answers.push('{"deleted": 3, "left": 2}', '{"deleted": 2, "left": 0}');
        await actions.deleteMany("q", { reason: "no" });
        answers.push(...Array(9).fill('{"kicked": 1, "left": 2}'));
        await actions.kickMany("q", { ids: ["a", "b"] });
        tell(sent.map((one) => one[2]));
        """,
    )
    of_reason, ids = {"all": True, "reason": "no"}, {"ids": ["a", "b"]}
    assert told[:2] == [{"count": 5}, {"count": 2, "age_ms": 1000}]
    assert told[2:4] == [of_reason, of_reason | {"age_ms": 1000}]
    assert told[4:] == [ids, ids]


@needs_node
@pytest.mark.thorough
def test_ages_are_past_or_to_come_by_the_clusters_clock(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """
        Date.now = () => 1_700_000_000_000;
        const { learnClock, relative } = await import("./format.js");
        const at_ms = Date.now() + 60_000;
        const own = relative(at_ms);
        learnClock(at_ms);
        tell([own, relative(at_ms - 8000), relative(at_ms + 123_000), relative(at_ms)]);
        """,
    )
    assert told == ["in 1 min", "8 s ago", "in 2 min 3 s", "now"]


@needs_node
@pytest.mark.thorough
def test_a_stream_goes_on_after_the_last_event_that_came(tmp_path: Path) -> None:
    told = run(
        tmp_path,
        """
        const { EventStream } = await import("./event_stream.js");
        globalThis.setTimeout = setImmediate;
        answers.push('id: 7-0\\nevent: account.dead\\ndata: {"n":1}\\n\\nid: 8-0\\nevent: x\\nda');
        const came = [];
        const stream = new EventStream({ types: "account.*" }, "5-0", (event) => came.push(event));
        while (sent.length < 2) await new Promise((done) => setImmediate(done));
        stream.stop();
        tell([sent.slice(0, 2).map((one) => [one[1], one[3]["Last-Event-ID"]]), came]);
        """,
    )
    where = "/v1/events?types=account.*"
    assert told == [
        [[where, "5-0"], [where, "7-0"]],
        [{"id": "7-0", "type": "account.dead", "data": {"n": 1}}],
    ]
