"""
Which packages a start imports, by their names: what a person waits for is held by these, not by a
time. And what there is without the extra of a node.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.run.packages import server_modules

from tidewarden.cli import VERBS

ROOT = Path(__file__).parents[2]
OF_TYPER = {"typer", "click", "shellingham", "annotated_doc", "typing_extensions"}
"""Without pydantic and rich."""
OF_HELP = OF_TYPER | {"tidewarden", "hiredis"}
SLOW = {"asyncio", "ssl", "email", "importlib.metadata"}
"""Of the standard library, which no help needs."""
OF_CLIENT = {"tidewarden", "hiredis", "uvloop"}
NOT_OF_NODE = {"opentelemetry", "rich", "typer", "pydantic", "httpx", "requests", "pygments"}
WHAT_CAME = """
import contextlib, io, json, sys
before = set(sys.modules)

def came():
    global before
    names, before = set(sys.modules) - before, set(sys.modules)
    tops = {name.partition(".")[0] for name in names}
    known = sys.stdlib_module_names | {"cython_runtime"}  # which is in memory alone
    foreign = {name for name in tops - known if name[:1] != "_"}
    return sorted(foreign), sorted(names)
"""
HELPS = """
from tidewarden.cli import main

found = {}
for words in WORDS:
    sys.argv = ["tidewarden", *words, "--help"]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
        main()
    assert "Usage: tidewarden" in out.getvalue(), out.getvalue()
    found[" ".join(words)] = came()
print(json.dumps(found))
"""
WITHOUT_SERVER = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from typer.testing import CliRunner
from tidewarden.cli import VERBS, command_line

app, found = command_line(*VERBS), {}
for words in WORDS:
    done = CliRunner().invoke(app, words)
    found[" ".join(words)] = done.exit_code, done.stdout, done.stderr, str(done.exception)
print(json.dumps(found))
"""
MISSING = (
    "tidewarden: this needs the server part of Tidewarden, which is not installed here (there is no"
    " module '{}'): pip install 'tidewarden[server]'\n"
)


def run(text: str, folder: Path, **values: Any) -> Any:
    """What a program prints, as JSON; ``values``: names that it finds."""
    set_before = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    done = subprocess.run(
        [sys.executable, "-c", set_before + text],
        cwd=folder, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.thorough
def test_no_help_imports_what_it_does_not_need(tmp_path: Path) -> None:
    helps = [[verb] for verb in VERBS] + [["queue", "put"], ["token", "export"], []]
    for words, (foreign, all_) in run(WHAT_CAME + HELPS, tmp_path, WORDS=helps).items():
        assert set(foreign) <= OF_HELP, words
        assert not SLOW & set(all_), words


@pytest.mark.thorough
def test_the_client_imports_little(tmp_path: Path) -> None:
    """Whatever else is installed beside it, as it is here."""
    text = "import tidewarden, tidewarden.client\nprint(json.dumps(came()))"
    foreign, _ = run(WHAT_CAME + text, tmp_path)
    assert set(foreign) == OF_CLIENT


@pytest.mark.thorough
def test_a_node_imports_nothing_for_people_and_no_telemetry(tmp_path: Path) -> None:
    """It is imported once it is configured: live/telemetry shows that it works then."""
    text = "import tidewarden.node.main\nprint(json.dumps(came()))"
    foreign, _ = run(WHAT_CAME + text, tmp_path)
    assert {"aiohttp", "redis", "pysyncobj"} <= set(foreign)
    assert not NOT_OF_NODE & set(foreign)


@pytest.mark.thorough
def test_what_needs_the_server_part_says_so_where_it_is_not_installed(tmp_path: Path) -> None:
    assert {"aiohttp", "redis", "cryptography", "msgspec", "pysyncobj", "re2"} <= server_modules()
    (tmp_path / "key").write_bytes(b"x" * 32)
    needing = [
        ["up"],
        ["node"],
        ["node", "--check"],
        ["store"],
        ["sandbox"],
        ["cluster", "restore", "file", "--data-dir", "data"],
        ["token", "export", "file", "--key-file", "key"],
        ["token", "import", "file", "--key-file", "key"],
    ]
    found = run(WITHOUT_SERVER, tmp_path, WORDS=needing, ABSENT=sorted(server_modules()))
    for words, (code, out, err, _) in found.items():
        assert (code, out) == (2, ""), words
        name = err.partition("module '")[2].partition("'")[0]
        assert err == MISSING.format(name), words
        assert name.partition(".")[0] in server_modules()
    assert [path.name for path in tmp_path.iterdir()] == ["key"], "nothing was begun"


@pytest.mark.thorough
def test_everything_else_works_without_the_server_part(tmp_path: Path) -> None:
    nowhere = ["--url", "redis://127.0.0.1:1"]
    asking = [
        ["status", *nowhere],
        ["queue", "list", *nowhere],
        ["token", "list", *nowhere],
        ["cluster", "status", *nowhere],
        ["cluster", "backup", "file", *nowhere],
        ["vault", "status", *nowhere],
        ["top", *nowhere],
        ["consumers", *nowhere],
    ]
    others = {
        ("version",): (0, "valkey-server is not installed: pip install 'tidewarden[server]'\n"),
        ("token", "presets", "--json"): (0, '"google"'),
        ("vault", "new-key", "none/key"): (4, ""),
        ("worker", "no_such_module"): (2, ""),
    }
    words = [*asking, *map(list, others)]
    found = run(WITHOUT_SERVER, tmp_path, WORDS=words, ABSENT=sorted(server_modules()))
    for one in asking:
        assert found[" ".join(one)][0] == 3, found[" ".join(one)]
    for one, (code, text) in others.items():
        exit_code, out, err, _ = found[" ".join(one)]
        assert exit_code == code, err
        assert text in out
        assert "tidewarden[server]" not in err
