"""
The programs of ``examples/`` as a new user runs them: in the folder of a ``tidewarden up``, with
nothing said.
"""

from __future__ import annotations

import base64
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from support.cluster.processes import spawn, until

from benchmarks.ports import free_ports

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
ENVIRON = {
    name: value for name, value in os.environ.items() if not name.startswith("TIDEWARDEN")
} | {
    "PYTHONPATH": str(ROOT),
    "PYTHONUNBUFFERED": "1",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where ``tidewarden up`` runs, with three sandbox accounts."""
    here = tmp_path_factory.mktemp("user")
    (here / "examples").symlink_to(EXAMPLES)
    base = free_ports(100)  # the sandbox is at the ninetieth
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(here)
        patch.setenv("PYTHONPATH", str(ROOT))
        up = spawn(
            [
                sys.executable,
                "-m",
                "tidewarden",
                "up",
                "--nodes",
                "1",
                "--sandbox",
                "3",
                "--base-port",
                str(base),
            ],
            here / "up.log",
        )
    try:
        until(lambda: "READY" in (here / "up.log").read_text(), 60, what="up is ready")
        yield here
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(30)


@pytest.fixture
def run(folder: Path) -> Callable[..., str]:
    """Runs a program in the user's folder to its end; what it printed."""

    def runner(*argv: str) -> str:
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=folder,
            env=ENVIRON,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return runner


class WorkerProcess:
    """``tidewarden worker`` in the user's folder; ``lines`` of both its outputs."""

    def __init__(self, folder: Path, app: str, log: str, *options: str) -> None:
        self.output = folder / log
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            for name in ("PYTHONPATH", "PYTHONUNBUFFERED"):
                patch.setenv(name, ENVIRON[name])
            self.process = spawn(
                [sys.executable, "-m", "tidewarden", "worker", app, *options], self.output
            )

    def text(self) -> str:
        return self.output.read_text()

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(40)

    def end(self) -> None:
        self.process.kill()
        self.process.wait(40)


def test_producer_and_consumer(run: Callable[..., str]) -> None:
    out = run("examples/producer.py")
    assert "put welcome-ada" in out
    assert "put 20 reports" in out
    assert "nobody has made the first report yet: timeout" in out
    out = run("examples/sync_consumer.py")
    assert 'welcome-ada, attempt 1: {"to":"ada@example.com"}' in out
    assert "bob@example.com" in out
    assert out.endswith("nothing more in mails\n")
    assert run("examples/sync_consumer.py", "reports").count("page ") == 20


def test_producer_and_worker(folder: Path, run: Callable[..., str]) -> None:
    worker = WorkerProcess(folder, "examples.worker_app:worker", "worker.log")
    try:
        until(lambda: "works on" in worker.text(), what="the worker works")
        out = run("examples/producer.py")
        report = json.loads(re.findall(r"the first report is done: (.*)", out)[0])
        assert report["report"] == "page 1"
        until(lambda: "sent to eve@example.com, attempt 1" in worker.text())
        assert worker.stop() == 0
        assert "stopped" in worker.text()
    finally:
        worker.end()


def test_a_worker_that_is_killed_in_the_middle_of_a_task_and_the_next_one(
    folder: Path, run: Callable[..., str]
) -> None:
    """
    The task of a worker that died without a word runs elsewhere, once its session's grace is over.
    """
    (folder / "slow_app.py").write_text(
        "import time\nfrom tidewarden.client import Task, Worker\nworker ="
        ' Worker()\n\n@worker.task("slow")\ndef slow(task: Task) -> int:\n    print("begins",'
        ' task.attempt, flush=True)\n    time.sleep(0 if task.json()["quick"] else 600)\n    return'
        " task.attempt\n"
    )
    (folder / "put_slow.py").write_text(
        "import sys\nfrom tidewarden.client import Client\nwith Client() as client:\n"
        '    client.queue("slow").put_json({"quick": False}, id="the-one")\n'
    )
    (folder / "hurry.py").write_text(
        "from tidewarden.client import Client\nwith Client() as client:\n    queue ="
        " client.queue('slow')\n    lease = queue.peek('the-one').lease\n   "
        " queue.update('the-one', payload='{\"quick\": true}', lease=lease)\n"
    )
    first = WorkerProcess(folder, "slow_app", "first.log")
    run("put_slow.py")
    until(lambda: "begins 1" in first.text(), what="the first worker has it")
    run("hurry.py")
    second = WorkerProcess(folder, "slow_app", "second.log")
    until(lambda: "works on slow" in second.text())
    try:
        first.process.kill()
        # a loss gives the attempt back
        until(lambda: "begins 1" in second.text(), what="the second worker has it")
        assert second.stop() == 0
    finally:
        first.end()
        second.end()


def test_the_readmes_lines(folder: Path, run: Callable[..., str]) -> None:
    """What a new user copies: ten lines, then a worker and its command."""
    readme = (ROOT / "README.md").read_text()
    section = readme[readme.index("## Ten lines, with the Python client") :]
    lines, shop = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[:2]
    (folder / "purge.py").write_text(
        "from tidewarden.client import Client\nwith Client() as client:\n   "
        " client.queue('mails').purge()\n"
    )
    run("purge.py")  # other tests use the queue, too
    (folder / "readme.py").write_text(lines)
    assert re.match(r"\{'to': 'ada@example.com'\} under lease \d+\n", run("readme.py"))
    (folder / "shop.py").write_text(shop)
    worker = WorkerProcess(folder, "shop:worker", "shop.log")
    try:
        (folder / "ask.py").write_text(
            "from tidewarden.client import Client\nwith Client() as client:\n    mails ="
            " client.queue('mails')\n    print(mails.wait(mails.put_json({'to':"
            " 'bob@example.com'}), timeout_ms=20_000))\n"
        )
        assert "result=b'sent to bob@example.com'" in run("ask.py")
        assert worker.stop() == 0
    finally:
        worker.end()
    run("purge.py")
    (redis_lines,) = re.findall(r"```python\n(import redis\n.*?)```", readme, re.DOTALL)
    assert '"port": 7420' in redis_lines
    redis_lines = redis_lines.replace('"port": 7420', f'"port": {base_port(folder)}')
    (folder / "redis_lines.py").write_text(redis_lines)
    assert re.match(r'{"to": "bob@example.com"} under lease \d+\n', run("redis_lines.py"))


def test_batches(run: Callable[..., str]) -> None:
    assert "250 of 250 tasks put, taken and acknowledged" in run("examples/batches.py", "250")


def test_token_reader(run: Callable[..., str]) -> None:
    out = run("examples/token_reader.py")
    assert re.match(
        r"sandbox/user-000001: Bearer \S+…, (fresh|expiring), generation \d+\nexpires in \d+ s\n",
        out,
    )


def nango_rows(key: bytes) -> str:
    """What the query of ``examples/nango_export.py`` prints: sealed, and in the API's form."""

    def text(value: bytes) -> str:
        return base64.b64encode(value).decode()

    tokens = {
        "type": "OAUTH2",
        "refresh_token": "r-ada",
        "access_token": "a-ada",
        "expires_at": "2099-01-01T00:00:00.000Z",
        "raw": {"scope": "read write"},
    }
    sealed = AESGCM(key).encrypt(b"twelve bytes", json.dumps(tokens).encode(), None)
    names = {"provider_config_key": "sandbox-2023", "connection_config": {"subdomain": "acme"}}
    rows = [
        {
            **names,
            "connection_id": "nango-ada",
            "credentials": {"encrypted_credentials": text(sealed[:-16])},
            "credentials_iv": text(b"twelve bytes"),
            "credentials_tag": text(sealed[-16:]),
        },
        {
            **names,
            "connection_id": "nango-bob",
            "credentials": {**tokens, "refresh_token": "r-bob"},
        },
        {**names, "connection_id": "nango-key", "credentials": {"type": "API_KEY", "apiKey": "k"}},
        {**names, "connection_id": "nango-cut", "credentials": {"encrypted_credentials": ""}},
    ]
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def test_connections_of_nango_become_accounts(folder: Path, run: Callable[..., str]) -> None:
    key = bytes(range(32))
    argv = [sys.executable, "examples/nango_export.py", "--provider", "sandbox-2023=sandbox"]
    environ = ENVIRON | {"NANGO_ENCRYPTION_KEY": base64.b64encode(key).decode()}

    def exported(rows: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv, cwd=folder, env=environ | more, input=rows, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip

    done = exported(nango_rows(key))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "left out: sandbox-2023/nango-key (API_KEY): no refresh token",
        "line 4: is no connection of Nango",
    ]
    (folder / "accounts.jsonl").write_text(done.stdout)
    said = run("-m", "tidewarden", "token", "import", "accounts.jsonl")
    assert said.startswith("2 accounts: 2 new")
    assert run("-m", "tidewarden", "token", "get", "sandbox/nango-ada") == "a-ada\n"
    shown = run("-m", "tidewarden", "token", "show", "sandbox/nango-bob")
    assert re.search(r"^scope +read write$", shown, re.MULTILINE)
    assert exported(nango_rows(bytes(32))).stderr.startswith("line 1: NANGO_ENCRYPTION_KEY is not")
    assert exported(nango_rows(key), NANGO_ENCRYPTION_KEY="").stderr.startswith("line 1: its cred")
    assert "FROM nango._nango_connections" in run("examples/nango_export.py", "--sql")


def base_port(folder: Path) -> int:
    """Of the node of ``tidewarden up`` there."""
    node = tomllib.loads((folder / "tidewarden-data" / "n0" / "node.toml").read_text())["node"]
    return int(node["base_port"])


def test_fastapi_app(folder: Path) -> None:
    port = free_ports(1)
    environ = ENVIRON | {"API_URL": f"http://127.0.0.1:{base_port(folder) + 90}"}
    argv = [sys.executable, "-m", "uvicorn", "examples.fastapi_app:app", "--port", str(port)]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        served = spawn(argv, folder / "fastapi.log", environ=environ)
    try:
        log = folder / "fastapi.log"
        until(lambda: "Application startup complete" in log.read_text(), what="it serves")
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as web:
            assert web.get("/me/user-000001").json() == {"account": "user-000001"}
            nobody = web.get("/me/nobody")
            assert (nobody.status_code, nobody.json()["error"]) == (404, "NOTFOUND")
            begun = web.post("/reports/of-fastapi")
            assert (begun.status_code, begun.json()) == (202, {"id": "of-fastapi"})
            assert web.get("/reports/of-fastapi").json()["state"] == "timeout"
            worker = WorkerProcess(folder, "examples.worker_app:worker", "reports.log")
            try:
                until(lambda: web.get("/reports/of-fastapi").json()["state"] == "done")
                made = json.loads(web.get("/reports/of-fastapi").json()["result"])
                assert made["report"] == "of-fastapi"
                assert web.post("/reports/of-fastapi").status_code == 202  # put no second time
                assert worker.stop() == 0
            finally:
                worker.end()
    finally:
        served.send_signal(signal.SIGTERM)
        served.wait(30)


DJANGO_SETTINGS = """
SECRET_KEY = "of a test"
USE_TZ = True
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "site.sqlite3"}}
"""
DJANGO_ENQUEUES = """
import asyncio, datetime, json
import django
django.setup()
from django.db import transaction
from django.utils import timezone
from shop_tasks import charge, count, welcome
from tidewarden.client import Client
from tidewarden.client.django.backend import our_priority
from tidewarden.client.django.framework import TaskResultDoesNotExist

def is_there(result):
    try:
        return bool(welcome.get_backend().get_result(result.id))
    except TaskResultDoesNotExist:
        return False

class Undone(Exception): ...

try:
    with transaction.atomic():
        undone = welcome.enqueue(8)
        raise Undone
except Undone:
    pass
with transaction.atomic():
    kept = welcome.enqueue(7)
    before = is_there(kept)
later = welcome.using(run_after=timezone.now() + datetime.timedelta(hours=1)).enqueue(9)
first = charge.using(priority=100).enqueue(5)
summed = asyncio.run(count.aenqueue(numbers=[1, 2, 3]))
try:
    welcome.enqueue(timezone.now())
except TypeError:
    refused = True
with Client() as client:
    info = client.queue("django.default").peek(first.id)
print(json.dumps({
    "undone": is_there(undone), "before": before, "kept": is_there(kept), "refused": refused,
    "later": later.status, "priority": info.priority, "attempts": info.fields["attempts_max"],
    "priorities": [our_priority(one) for one in (-100, 0, 100)],
    "ids": [kept.id, first.id, summed.id, later.id],
}))
"""
DJANGO_RESULTS = """
import json, sys
import django
django.setup()
from shop_tasks import welcome
from tidewarden.client.django.framework import TaskResultDoesNotExist
backend = welcome.get_backend()
for one in sys.argv[1:]:
    try:
        result = backend.get_result(one)
    except TaskResultDoesNotExist:
        print(json.dumps(None))
        continue
    print(json.dumps({
        "status": result.status, "value": result._return_value, "attempts": result.attempts,
        "errors": [[error.exception_class.__name__, error.traceback] for error in result.errors],
        "name": result.task.name, "args": result.args, "finished": result.finished_at is not None,
    }))
"""


def test_djangos_tasks(folder: Path) -> None:
    """As docs/django.md tells it, with Django's own framework or its backport."""
    own = importlib.util.find_spec("django.tasks") is not None
    text = (ROOT / "docs" / "django.md").read_text("utf-8")
    found = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", text, re.DOTALL)
    assert [name for name, _ in found] == ["settings", "shop_tasks", "shop_worker"]
    (view,) = re.findall(r"```python\n# a view\n(.*?)```", text, re.DOTALL)
    programs = dict(found) | {
        "view": f"import django\ndjango.setup()\n{view}",
        "enqueues": DJANGO_ENQUEUES,
        "results": DJANGO_RESULTS,
    }
    programs["settings"] += DJANGO_SETTINGS.replace("site.sqlite3", str(folder / "site.sqlite3"))
    programs["settings"] = programs["settings"].replace('"attempts": 3', '"attempts": 2')
    for name, program in programs.items():
        here = program if own else program.replace("from django.tasks", "from django_tasks")
        (folder / f"{name}.py").write_text(here)
    environ = ENVIRON | {"DJANGO_SETTINGS_MODULE": "settings"}

    def run(*argv: str) -> str:
        done = subprocess.run(
            [sys.executable, *argv], cwd=folder, env=environ, capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert "django.mails." in run("view.py")
    said = json.loads(run("enqueues.py"))
    ids = said.pop("ids")
    assert said == {
        "undone": False, "before": False, "kept": True, "refused": True, "later": "READY",
        "priority": 0, "attempts": 2, "priorities": [99, 50, 0],
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_SETTINGS_MODULE", "settings")
        worker = WorkerProcess(folder, "shop_worker:worker", "django.log")
    try:

        def results() -> list[Any]:
            rows = [json.loads(line) for line in run("results.py", *ids, "django.x.1").splitlines()]
            ended = all(row["status"] in ("SUCCESSFUL", "FAILED") for row in rows[:3])
            return rows if ended else []

        kept, failed, summed, later, nothing = until(results, every_s=0.5, what="all have run")
        assert worker.stop() == 0
    finally:
        worker.end()
    assert (kept["status"], kept["value"], kept["args"]) == ("SUCCESSFUL", "welcomed 7", [7])
    assert (kept["name"], kept["attempts"], kept["finished"]) == ("welcome", 1, True)
    assert summed["value"] == {"sum": 6, "attempt": 1}
    assert (failed["status"], failed["attempts"]) == ("FAILED", 2)
    assert failed["errors"] == [["ValueError", "builtins.ValueError: no card for 5"]] * 2
    assert (later["status"], later["finished"], nothing) == ("READY", False, None)


def test_every_example_is_run_here() -> None:
    named = Path(__file__).read_text()
    missing: list[Any] = [path.name for path in EXAMPLES.glob("*.py") if path.stem not in named]
    assert not missing
