"""
Every program and command line of the documents, pasted into a fresh ``tidewarden up`` in the order
in which they stand; each has to succeed, and to leave nothing behind that fails.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import greenstalk
import pytest
from support.cluster.processes import spawn, until

from benchmarks.ports import free_ports

pytestmark = pytest.mark.timeout(600)

ROOT = Path(__file__).parents[3]
LANGUAGES = ("sh", "py", "python")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BEANSTALKD = ("docs/beanstalkd.md", "docs/coming_from/beanstalkd.md")
"""They need that door."""
NODES = 3
TIMES = {"--seconds 10": "--seconds 1", "MS 10000": "MS 1000", "ms=10000": "ms=1000"}
"""How long taps go on here."""
APART = {
    ("README.md", "make run"): "it is what runs here, and the tests",
    ("README.md", "tidewarden up --config"): "needs a provider of the reader's own",
    ("docs/client.md", "import httpx"): "needs a provider of the reader's own",
    ("docs/client.md", "with queue.take"): "a part of a program",
    ("docs/client.md", "with client.lock"): "a part of a program",
    ("docs/client.md", "from tidewarden.client import AsyncTask"): "a part of a program",
    ("docs/client.md", "@worker.schedule"): "a part of a program",
    ("docs/connect.md", ""): "needs a provider; live/tokens/test_connecting has two",
    ("docs/coming_from/cron-nango.md", "export NANGO"): "needs a Nango; test_examples has its rows",
    ("docs/django.md", ""): "needs a project; live/up/test_examples makes one of it",
    ("docs/locks.md", "from tidewarden.client import Redlock"): "needs servers of the reader's own",
    ("docs/http.md", "npm install"): "fetches packages; live/openapi does it",
    ("docs/operations.md", "export TIDEWARDEN_URL"): "other hosts",
    ("docs/performance.md", ""): "benchmarks",
    ("docs/replication.md", "systemctl"): "services of hosts; live/failover/test_hosts_lost",
    ("docs/telemetry.md", "pip install"): "fetches packages",
    ("docs/testing.md", ""): "tests",
    ("docs/tokens.md", "import base64"): "a receiver that serves for ever; live/tokens has one",
}
SAYS = {
    "docs/coming_from/beanstalkd.md": ("hello", "1 moved"),
    "docs/coming_from/celery-rq.md": ("done welcomed 7, attempt 1", "KeyError: 'user'"),
    "docs/coming_from/cron-nango.md": (" done at ", "3 accounts: 3 new"),
    "docs/coming_from/sidekiq-faktory.md": ('"reason":"IOError: no mail"', '"kicked":0'),
    "docs/coming_from/sqs.md": ("{'n': 19} received 1 times", '"acked":true'),
}
"""What is printed, where a program that does nothing would end well, too."""
QUEUES = (
    'curl -s -H "Authorization: Bearer admin:$(cat tidewarden-data/secrets/admin.secret)"'
    " http://127.0.0.1:7421/v1/queues"
)
CLIENTS = """#!{python}
# As much of redis-cli as documents use.
import os, sys, time
import redis
port, user, resp, words = 6379, None, 2, sys.argv[1:]
while words and words[0].startswith("-"):
    option = words.pop(0)
    if option == "-3":
        resp = 3
    elif option in ("-p", "--user"):
        value = words.pop(0)
        port, user = (int(value), user) if option == "-p" else (port, value)
    else:
        sys.exit(f"redis-cli: {{option}}?")
secret = os.environ.get("REDISCLI_AUTH")
line = redis.Redis(port=port, username=user, password=secret, protocol=resp, retry=None)
print(line.execute_command(*words))
"""


def blocks(name: str) -> list[tuple[str, str]]:
    """Language and text of each block of a document that is to be pasted."""
    found = BLOCK.findall((ROOT / name).read_text("utf-8"))
    apart = [begin for document, begin in APART if document == name]
    return [
        (language, text)
        for language, text in found
        if language in LANGUAGES and not any(text.startswith(begin) for begin in apart)
    ]


def documents() -> list[str]:
    found = [
        path for folder in ("", "coming_from") for path in (ROOT / "docs" / folder).glob("*.md")
    ]
    named = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in found)]
    return [name for name in named if blocks(name)]


class Reader:
    """Somebody who pastes: a folder with a cluster, programs on the path, and a shell."""

    def __init__(self, folder: Path, base: int, up: subprocess.Popen[bytes]) -> None:
        self.folder = folder
        self.up = up
        self._base = base
        self.beanstalkd = base + 4
        tools = folder / "bin"
        tools.mkdir()
        (tools / "python").symlink_to(sys.executable)
        curl = shutil.which("curl")
        self._tool("curl", f'#!/bin/sh\nexec {curl} --fail-with-body "$@"\n')
        self._tool("tidewarden", f'#!/bin/sh\nexec {sys.executable} -m tidewarden "$@"\n')
        if not shutil.which("redis-cli"):
            self._tool("redis-cli", CLIENTS.format(python=sys.executable))
        self.environ = {
            name: value for name, value in os.environ.items() if not name.startswith("TIDEWARDEN")
        } | {"PYTHONPATH": str(ROOT), "PATH": f"{tools}:{os.environ['PATH']}"}
        (folder / "Makefile").write_text("report:\n\techo $$TIDEWARDEN_FENCE\n")

    def _tool(self, name: str, text: str) -> None:
        (self.folder / "bin" / name).write_text(text)
        (self.folder / "bin" / name).chmod(0o755)

    def here(self, text: str) -> str:
        """The text with the ports of this cluster, and short times."""
        for port, mine in ((7420, 0), (7421, 1), (7510, 90), (11300, 4)):
            text = text.replace(str(port), str(self._base + mine))
        for long, short in TIMES.items():
            text = text.replace(long, short)
        return text

    def paste(self, argv: list[str], text: str) -> str:
        done = subprocess.run(
            [*argv, self.here(text)], cwd=self.folder, env=self.environ, capture_output=True,
            text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def work(self, app: str, queue: str) -> str:
        """Run a worker until its queue has nothing left to do; what it logged."""
        log = self.folder / "worker.log"
        log.unlink(missing_ok=True)
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(self.folder)
            patch.setenv("PYTHONPATH", str(ROOT))
            worker = spawn([sys.executable, "-m", "tidewarden", "worker", app], log)
        try:
            until(lambda: "works on" in log.read_text(), what="the worker works")
            until(lambda: self.left(queue) == 0, what="the worker has done all")
        finally:
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(40) == 0
        return log.read_text()

    def queues(self) -> dict[str, dict[str, Any]]:
        listed = self.paste(["bash", "-c"], QUEUES)
        return {row["queue"]: row for row in json.loads(listed)["queues"]}

    def left(self, queue: str) -> int:
        row = self.queues()[queue]
        return sum(row[state] for state in ("ready", "delayed", "leased", "buried"))


def reader(folder: Path, *options: str) -> Iterator[Reader]:
    base = free_ports(100)  # the sandbox is at the ninetieth
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("PYTHONPATH", str(ROOT))
        argv = [sys.executable, "-m", "tidewarden", "up", "--base-port", str(base), *options]
        config = folder / "config.toml"
        if config.exists():
            config.write_text(config.read_text().replace("11300", str(base + 4)))
        up = spawn(argv, folder / "up.log")
    try:
        until(lambda: "READY" in (folder / "up.log").read_text(), 90, what="up is ready")
        yield Reader(folder, base, up)
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(60)


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """As ``make run``, with fewer accounts."""
    folder = tmp_path_factory.mktemp("reader")
    yield from reader(
        folder, "--nodes", str(NODES), "--sandbox", "3", "--data-dir", "tidewarden-data"
    )


def pasted(one: Reader, name: str) -> str:
    """Paste all blocks of a document; what they printed."""
    (one.folder / "shell").write_text("")
    said = ""
    for language, text in blocks(name):
        if language == "sh":
            # Variables of one block are there in the next, as in the reader's shell.
            around = f"set -a; . ./shell\n{text}\nexport -p > shell"
            said += one.paste(["bash", "-euo", "pipefail", "-c"], around)
        elif found := re.match(r"# (\w+)\.py\n", text):
            (one.folder / f"{found[1]}.py").write_text(text)
            one.paste([sys.executable, "-c"], f"import {found[1]}")
            (queue,) = re.findall(r'@worker\.task\("(\w+)"', text)
            log = one.work(f"{found[1]}:worker", queue)
            assert "Traceback" not in log, log
        else:
            said += one.paste([sys.executable, "-c"], text)
    return said


@pytest.mark.parametrize("name", [name for name in documents() if name not in BEANSTALKD])
def test_what_is_pasted_works(usual: Reader, name: str) -> None:
    said = pasted(usual, name)
    for text in SAYS.get(name, ()):
        assert text in said


def test_nothing_that_was_pasted_poisons_the_worker_of_the_readme(usual: Reader) -> None:
    """Whatever the documents put, in whichever order, that worker can do."""
    if not (usual.folder / "shop.py").exists():
        pasted(usual, "README.md")  # once: within a minute its ids are put no second time
    log = usual.work("shop:worker", "mails")
    assert "Traceback" not in log, log
    assert [name for name, row in usual.queues().items() if row["buried"]] == []


@pytest.mark.parametrize("name", BEANSTALKD)
def test_a_client_of_beanstalkd(name: str, tmp_path: Path) -> None:
    (settings, *_) = [
        text
        for language, text in BLOCK.findall((ROOT / BEANSTALKD[0]).read_text("utf-8"))
        if language == "toml"
    ]
    (tmp_path / "config.toml").write_text(settings)
    for one in reader(tmp_path, "--nodes", "1", "--config", "config.toml"):
        with greenstalk.Client(("127.0.0.1", one.beanstalkd), use="mail") as old:
            old.put("to be moved")
        said = "".join(
            one.paste([sys.executable, "-c"], text)
            for language, text in blocks(name)
            if language != "sh"  # which is what runs here
        )
        for text in SAYS.get(name, ()):
            assert text in said


def test_each_exception_is_there() -> None:
    for document, begin in APART:
        found = BLOCK.findall((ROOT / document).read_text("utf-8"))
        assert [
            1 for language, text in found if language in LANGUAGES and text.startswith(begin)
        ], begin
