"""
The house rules that no linter knows: who may import whom, how long functions get, what documents
name.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support.run.longest import LONGEST
from support.run.trees import HOLDS_STATEMENTS, parsed, statements

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tidewarden"
TESTS = ROOT / "tests"

EVERYBODY = {
    "errors",
    "clock",
    "config",
    "log",
    "cpu_budget",
    "loop_watchdog",
    "tracing",
    "histograms",
    "peer_line",
    "bounded_connector",
    "side_thread",
    "duties",
    "user_limits",
}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "cpu_budget": set(),
    "tracing": set(),
    "histograms": set(),
    "loop_watchdog": {"clock"},
    "side_thread": set(),
    "bounded_connector": {"side_thread"},
    "peer_line": {"bounded_connector", "errors"},
    "duties": {"clock", "errors"},
    "user_limits": {"config", "errors"},
    "foreign_pattern": set(),
    "config": {"errors", "foreign_pattern"},
    "log": {"errors", "clock", "config"},
    "raft": EVERYBODY,
    "store": EVERYBODY,
    "queue": EVERYBODY | {"store"},
    "cluster": EVERYBODY | {"raft", "store", "queue"},
    "tokens": EVERYBODY | {"queue"},
    "scheduler": EVERYBODY | {"queue"},
    "server": EVERYBODY | {"cluster", "tokens", "scheduler", "queue"},
    "client": {"errors", "clock", "tracing"},
    "sandbox": EVERYBODY,
    "telemetry": EVERYBODY,
    "node": (
        EVERYBODY
        | {
            "raft",
            "store",
            "queue",
            "cluster",
            "tokens",
            "scheduler",
            "server",
            "sandbox",
            "client",
            "telemetry",
        }
    ),
    # store: `up` runs one, see decision 32
    "cli": EVERYBODY | {"client", "node", "sandbox", "store"},
}
ROOM_OF = {"__main__": "cli"}
# The same within tokens, by folder or file; those that put them together import all of them.
PUT_TOKENS_TOGETHER = {"tokens", "__init__", "open_tokens", "system_queues"}
ALLOWED_IN_TOKENS: dict[str, set[str]] = {
    "provider": set(),
    "vault": set(),
    "limits": {"accounts", "provider"},
    "journal": {"vault"},
    "accounts": {"provider", "journal", "vault"},
    "policy": {"accounts", "limits", "provider"},
    "shared_parts": {"accounts", "journal", "policy", "provider", "vault"},
    "events": {"accounts", "provider", "shared_parts", "vault"},
    "refresh": (
        {"accounts", "events", "journal", "limits", "policy", "provider", "shared_parts", "vault"}
    ),
    "verbs": {"accounts", "events", "limits", "policy", "provider", "vault", "why"},
    "custody": {"accounts", "journal", "provider", "shared_parts", "vault", "verbs"},
    "connect": ({"accounts", "events", "journal", "provider", "shared_parts", "vault", "verbs"}),
    "why": {"accounts", "limits", "policy", "provider"},
}
# Which folders of tests mirror which folder of the product; a folder below one that stands here may
# have its own line.
MIRRORS = {
    "": {"unit", "rooms/growth"},
    "cli": {"unit/cli", "rooms/cli", "live/cli", "live/up"},
    "client": {"unit/client", "rooms/client"},
    "cluster": {"unit/cluster", "rooms/cluster", "live/failover", "live/engines"},
    "config": {"unit/config"},
    "node": {"unit/node", "live/node", "live/limits"},
    "queue": {"unit/queues", "rooms/queues", "rooms/queues/takes"},
    "queue/lua": {"scripts/tasks", "scripts/records", "scripts/lanes", "scripts/holders"},
    "raft": {"unit/raft", "live/raft"},
    "sandbox": {"unit/sandbox"},
    "scheduler": {"unit/scheduling", "rooms/scheduling"},
    "server": {"rooms/server"},
    "server/access": {"unit/server/access"},
    "server/console": {"unit/server/console", "live/console"},
    "server/consumers": {"unit/server/consumers"},
    "server/beanstalkd": {"unit/server/beanstalkd", "rooms/beanstalkd", "live/beanstalkd"},
    "server/http": {"unit/server/http"},
    "server/http/openapi": {"live/openapi"},
    "server/resp": {"unit/server/resp"},
    "server/traffic": {"unit/server/traffic"},
    "server/verbs": {"unit/server/verbs"},
    "store": {"unit/store", "rooms/store", "live/store", "live/faults", "live/data_folders"},
    "telemetry": {"unit/telemetry", "live/telemetry"},
    "tokens": {"unit/tokens", "rooms/tokens", "live/tokens"},
    "tokens/limits": {"unit/tokens/limits", "live/tokens/limits"},
    "tokens/lua": {"scripts/accounts"},
    "tokens/provider": {"unit/tokens/provider", "live/tokens/provider"},
    "tokens/refresh": {"live/tokens/refresh", "live/refresh_steps", "live/judgement"},
}
MIRROR_NOTHING = {"meta", "mutate", "soak", "transcripts", "traps"}  # they are about the whole
FOLDER_MODULES_MAX = 20
FUNCTION_LINES_MAX = 70
LUA_FUNCTION = re.compile(
    r"^(?:local )?function ([\w.:]+)[^\n]*(?<! end)\n.*?^end$", re.MULTILINE | re.DOTALL
)

PYTHON = sorted(path for path in PACKAGE.rglob("*.py"))
LUA = sorted(PACKAGE.rglob("*.lua"))
TEST_FILES = sorted(TESTS.rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    return ROOM_OF.get(first, first)


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and room of each import of ours in a file."""
    for line, parts in imported_modules(path):
        yield line, ROOM_OF.get(parts[0], parts[0])


def imported_modules(path: Path) -> Iterator[tuple[int, list[str]]]:
    """
    Line and path of each module of ours that a file imports, those inside functions and for types
    alone included.
    """
    package = ("tidewarden", *path.relative_to(PACKAGE).parts[:-1])
    for node in statements(path):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(
                [*package[: len(package) - node.level + 1], *([node.module] if node.module else [])]
            )
            whole = base if node.level else node.module or ""
            names = (
                [f"{whole}.{alias.name}" for alias in node.names]
                if whole == "tidewarden"
                else [whole]
            )
        for name in names:
            parts = name.split(".")
            if parts[0] == "tidewarden" and len(parts) > 1 and not parts[1].startswith("__"):
                yield node.lineno, parts[1:]


def test_imports_follow_the_table() -> None:
    wrong: list[str] = []
    for path in PYTHON:
        if path != PACKAGE / "__init__.py":
            room = room_of(path)
            assert room in ALLOWED, f"{name_of(path)}: a new room needs a line in the table"
            wrong += [
                f"{name_of(path)}:{line}: {room} imports {other}"
                for line, other in imported(path)
                if other != room and other not in ALLOWED[room]
            ]
    assert not wrong


def test_imports_within_tokens_follow_their_table() -> None:
    wrong: list[str] = []
    for path in (PACKAGE / "tokens").rglob("*.py"):
        room = path.relative_to(PACKAGE / "tokens").parts[0].removesuffix(".py")
        if room in PUT_TOKENS_TOGETHER:
            continue
        assert room in ALLOWED_IN_TOKENS, f"{name_of(path)}: a new room needs a line in the table"
        wrong += [
            f"{name_of(path)}:{line}: {room} imports {parts[1]}"
            for line, parts in imported_modules(path)
            if parts[0] == "tokens" and parts[1:2] not in ([room], [])
            if parts[1] not in ALLOWED_IN_TOKENS[room]
        ]
    assert not wrong


def packages_imported(path: Path) -> set[str]:
    """The packages that a file imports from, by their first names; our own by dots are not."""
    found: set[str] = set()
    for node in statements(path):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def test_redis_py_is_imported_in_one_place() -> None:
    """Which hides OpenTelemetry from it: who imports it first decides."""
    importing = {path for path in PYTHON if "redis" in packages_imported(path)}
    assert importing == {PACKAGE / "store" / "redis_py.py"}


def in_circles(imports: dict[str, set[str]]) -> set[str]:
    """Those that are in a circle of imports, or import one that is."""
    left = dict(imports)
    while free := [one for one, others in left.items() if not others & left.keys()]:
        for one in free:
            del left[one]
    return set(left)


def at_import(path: Path) -> Iterator[str]:
    """
    The modules of ours that importing this one imports, the packages that they lie in included;
    those inside functions and for types alone are not.
    """
    own = module_of(path).split(".")
    package = own if path.name == "__init__.py" else own[:-1]
    unread = list(parsed(path).body)
    for node in unread:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*start, *([node.module] if node.module else [])])
            names = [f"{base}.{alias.name}" for alias in node.names]
        else:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not (
                isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            ):
                unread += [
                    one for one in ast.iter_child_nodes(node) if isinstance(one, HOLDS_STATEMENTS)
                ]
            continue
        for parts in (name.split(".") for name in names):
            prefixes = [parts[:length] for length in range(1, len(parts) + 1)]
            yield from (".".join(one) for one in prefixes if one != own[: len(one)])


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_no_imports_run_in_a_circle() -> None:
    """Not among rooms, nor among modules: each can be imported first."""
    assert not in_circles(ALLOWED)
    assert not in_circles(ALLOWED_IN_TOKENS)
    assert not in_circles({module_of(path): set(at_import(path)) for path in PYTHON})


def test_functions_are_short() -> None:
    long: list[str] = []
    for path in PYTHON:
        for node in statements(path):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                # A signature may be long without being complicated: a command line's options are
                # one each.
                first = node.body[0].lineno
                size = (node.end_lineno or first) - first + 1
                if size >= FUNCTION_LINES_MAX:
                    long.append(f"{name_of(path)}:{node.lineno}: {node.name} has {size} lines")
    for path in LUA:
        text = path.read_text("utf-8")
        for match in LUA_FUNCTION.finditer(text):
            size = match[0].count("\n") + 1
            if size >= FUNCTION_LINES_MAX:
                long.append(
                    f"{name_of(path)}:{text.count(chr(10), 0, match.start()) + 1}: {match[1]} has"
                    f" {size} lines"
                )
    assert not long


def modules_by_folder(files: list[Path]) -> dict[str, int]:
    """How many modules each folder has of its own."""
    counted = Counter(
        name_of(path.parent) for path in files if path.name not in ("__init__.py", "conftest.py")
    )
    return dict(counted)


def test_folders_are_small() -> None:
    full = {
        name
        for name, count in modules_by_folder([*PYTHON, *TEST_FILES]).items()
        if count > FOLDER_MODULES_MAX
    }
    assert not full


def test_tests_mirror_the_folders_of_the_product() -> None:
    rooms = {path.relative_to(PACKAGE).parts[0] for path in PYTHON if path.parent != PACKAGE}
    assert rooms <= set(MIRRORS), "a new room needs a folder of tests"
    have = {
        str(path.parent.relative_to(TESTS)) for path in TEST_FILES if path.name.startswith("test_")
    }
    mirrors = {folder for folders in MIRRORS.values() for folder in folders}
    assert mirrors == {folder for folder in have if folder.partition("/")[0] not in MIRROR_NOTHING}


def test_the_architecture_names_every_folder() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    folders = {path.parent.relative_to(PACKAGE) for path in PYTHON} - {Path()}
    assert not [str(folder) for folder in folders if f"`{folder}/`" not in text]


def test_documents_name_tests_that_exist() -> None:
    for path in (
        ROOT / "ARCHITECTURE.md",
        ROOT / "CONTRIBUTING.md",
        *(ROOT / "docs").rglob("*.md"),
    ):
        named = set(
            re.findall(r"`(?:tests/)?((?:[a-z_]+/)*test_\w+)(?:\.py)?`", path.read_text("utf-8"))
        )
        assert not {one for one in named if not (TESTS / f"{one}.py").exists()}, name_of(path)


def test_the_exceptions_are_of_modules_that_exist() -> None:
    assert {TESTS / name for name in LONGEST} <= set(TEST_FILES)


def test_programs_in_texts_import_what_there_is() -> None:
    """
    Those that tests start as processes of their own; a rename of a module passes them by.

    The tests' own imports are among these: they are found by the same words, and hold the same.
    """
    line = re.compile(r"from (tidewarden[\w.]*) import (\w+)")
    named = {found: path for path in TEST_FILES for found in line.findall(path.read_text("utf-8"))}
    assert len(named) > 5
    for (module, name), path in named.items():
        there = importlib.import_module(module)
        assert hasattr(there, name) or importlib.import_module(f"{module}.{name}"), name_of(path)


def test_no_package_among_the_tests_shadows_a_standard_module() -> None:
    assert not list(TESTS.rglob("__init__.py"))


def test_lua_lines_end_at_100_columns() -> None:
    lines = [
        (path, number, line)
        for path in LUA
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
    ]
    assert not [f"{name_of(path)}:{number}" for path, number, line in lines if len(line) > 100]


def test_the_folder_is_the_mark() -> None:
    """What needs a cluster stands in ``live``, and needs no mark for that (tests/conftest.py)."""
    said = re.compile(r"pytest\.mark\.live\b|^pytestmark = .*pytest\.mark\.soak\b", re.MULTILINE)
    assert not [
        name_of(path)
        for path in TEST_FILES
        if said.search(path.read_text("utf-8")) and path != Path(__file__)
    ]


def test_tests_share_by_support_alone() -> None:
    """A test module that others import from is found by nobody, and collected twice."""
    sharing = re.compile(r"^(?:from|import) (?!aiohttp)(?:[a-z_]+\.)+test_\w+", re.MULTILINE)
    assert not [name_of(path) for path in TEST_FILES if sharing.search(path.read_text("utf-8"))]


def test_lua_begins_with_its_header() -> None:
    assert not [name_of(path) for path in LUA if not path.read_text("utf-8").startswith("-- ")]


def exports_later(node: ast.stmt) -> bool:
    """Whether a statement serves to re-export what is imported once it is asked for (PEP 562)."""
    if isinstance(node, ast.If):
        return ast.unparse(node.test) == "TYPE_CHECKING"
    return isinstance(node, ast.FunctionDef) and node.name == "__getattr__"


def test_init_files_only_re_export() -> None:
    allowed = (ast.Import, ast.ImportFrom, ast.Expr, ast.Assign, ast.AnnAssign)
    for path in PACKAGE.rglob("__init__.py"):
        if path.parent.name != "cli":  # puts the verbs together
            wrong = [
                node
                for node in parsed(path).body
                if not isinstance(node, allowed) and not exports_later(node)
            ]
            assert not wrong, name_of(path)


def test_names_that_say_nothing_are_not_used() -> None:
    empty = {"util", "utils", "common", "helpers", "helper", "base", "manager", "misc"}
    assert not [name_of(path) for path in (*PYTHON, *TEST_FILES) if path.stem in empty]
