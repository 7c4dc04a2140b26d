"""
What documents say of words, figures, settings and files is what the code does, and their links lead
somewhere.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pysyncobj

from tidewarden.config.error_classes import CONFIGURABLE, ERROR_CLASSES
from tidewarden.config.load import EVENT_KINDS, SECTIONS
from tidewarden.errors import BY_CODE, Error
from tidewarden.histograms import KINDS
from tidewarden.queue.settings import QueueSettings
from tidewarden.server.http.authorization import ROUTES
from tidewarden.server.http.metrics import HELP

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "tidewarden"
DOCS = {
    path: path.read_text("utf-8")
    for path in (
        ROOT / "README.md",
        ROOT / "ARCHITECTURE.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "docs").rglob("*.md"),
    )
}
PROTOCOL = DOCS[ROOT / "docs" / "protocol.md"]
PYTHON = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
LUA = {path: path.read_text("utf-8") for path in PACKAGE.rglob("*.lua")}
NO_DOOR = {"UNREACHABLE", "CONFIG"}  # the SDK's, and the command line's
AS_IN_REDIS = {"NOPROTO", "EXECABORT"}
# of the status, modules, a file
NOT_FILES = {"shop.py"}
LINK = re.compile(r"\]\((?!\w+:)([^)\s#]*)(?:#([^)\s]*))?\)")
# Of Python and libraries, of other queues, headers of HTTP.
NOT_OURS = {
    "CliRunner",
    "Depends",
    "DoNotSchedule",
    "False",
    "ImmediateBackend",
    "None",
    "Host",
    "Origin",
    "ParamSpec",
    "SystemExit",
    "TestCase",
    "True",
}
NOT_SETTINGS = {"store.at", "store.embedded", "store.child", "vault.key"}


def test_the_table_of_error_words_is_the_tree_of_errors() -> None:
    table = PROTOCOL[PROTOCOL.index("## Errors") : PROTOCOL.index("## Limits")]
    rows = {
        word: int(status)
        for word, status in re.findall(r"^\| `([A-Z]+)` \| (\d+) \|", table, re.MULTILINE)
    }
    assert rows == {code: kind.http_status for code, kind in BY_CODE.items() if code not in NO_DOOR}


def test_every_error_word_is_answered_by_something() -> None:
    """By a class that is raised, or a script that refuses with the word."""
    code = "\n".join(text for path, text in PYTHON.items() if path.name != "errors.py")
    scripts = "\n".join(LUA.values())
    silent = {
        word
        for word, kind in BY_CODE.items()
        if kind is not Error
        and not re.search(rf"\b{kind.__name__}\(", code)
        and not re.search(rf"refuse\('{word}\b", scripts)
    }
    assert not silent


def test_documents_name_error_words_that_there_are() -> None:
    for path, text in DOCS.items():
        named = {
            word
            for words in re.findall(r"Errors: ([^.|\n]*)", text)
            for word in re.findall(r"`([A-Z ]+)`", words)
        }
        words = {word for one in named for word in one.split()}
        assert not words - set(BY_CODE) - AS_IN_REDIS, path.name


HISTOGRAMS = [f"tidewarden_{name}" for name in KINDS]


def test_documents_name_metrics_that_there_are() -> None:
    for path, text in DOCS.items():
        named = set(
            re.findall(r"tidewarden_(?:cluster|http|node|queue|resp|tokens|webhook)_\w*\w", text)
        )
        gone = {
            name
            for name in named
            if not any(one == name or one.startswith(f"{name}_") for one in (*HELP, *HISTOGRAMS))
        }
        assert not gone, path.name


def test_every_counter_of_the_scripts_has_its_help() -> None:
    """Those that scripts count of a queue, by the name in /metrics."""
    counted = {name for text in LUA.values() for name in re.findall(r"\bcount\('([\w ]+)'", text)}
    counted |= {
        how for text in LUA.values() for how in re.findall(r"end_lease\([^)]*?, '(\w+)'", text)
    }
    hows = next(text for path, text in LUA.items() if path.name == "end.lua")
    counted |= set(re.findall(r"(\w+) = true", hows[hows.index("local HOWS") :].split("}")[0])) - {
        "bury"
    }
    assert len(counted) >= 20
    assert not {f"tidewarden_queue_{name.replace(' ', '_')}_total" for name in counted} - set(HELP)


def test_documents_name_settings_that_there_are_with_their_defaults() -> None:
    fields = {
        f"{section}.{field.name}": field.default
        for section, kind in SECTIONS.items()
        if dataclasses.is_dataclass(kind)
        for field in dataclasses.fields(kind)
    }
    sections = "|".join({name.partition(".")[0] for name in fields})
    for path, text in DOCS.items():
        for name, value in re.findall(
            rf"`((?:{sections})\.(?!py`)[a-z_]+)`(?: \(([\d,]+)\))?", text
        ):
            if name not in NOT_SETTINGS | set(EVENT_KINDS):
                assert name in fields, f"{path.name}: there is no setting {name}"
                if value:
                    assert fields[name] == int(value.replace(",", "")), (
                        f"{path.name}: {name} is not {value} by default"
                    )


def test_the_provider_error_classes_are_told_of() -> None:
    """The table has those of answers, the text behind it those of requests that were not sent."""
    text = DOCS[ROOT / "docs" / "providers.md"]
    text = text[text.index("## What an answer means") :].partition("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \|", text, re.MULTILINE)
    answers = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(answers) == sorted(name for name, row in ERROR_CLASSES.items() if row.answered)
    assert set(CONFIGURABLE) < set(answers)
    unsent = text[text.index("If nothing was sent") :].partition("\n\n")[0]
    assert set(ERROR_CLASSES) - set(answers) == set(re.findall(r"`(\w+)`", unsent)) - {
        "error",
        "grant",
    }


def test_the_table_of_a_queues_settings_has_each_with_its_default() -> None:
    table = PROTOCOL[PROTOCOL.index("### Q.CONFIG") : PROTOCOL.index("#### Durability")]
    told: dict[str, str] = {}
    for names, defaults in re.findall(r"^\| (`[^|]*`) \| ([^|]*) \|", table, re.MULTILINE):
        told |= dict(zip(re.findall(r"`(\w+)`", names), defaults.split(", "), strict=True))
    assert told == {name: str(value) for name, value in QueueSettings().shown().items()}


def test_every_route_is_described() -> None:
    text = "".join(DOCS.values())
    assert not {path for _, path in ROUTES if path.split("/{")[0] not in text}


def files_named(text: str) -> set[str]:
    """Paths of code that a document names: each in backquotes, or linked to."""
    named = set(re.findall(r"`([\w/.-]+\.(?:py|lua|c|toml|service|yml|yaml))`", text))
    folders = "tidewarden|tests|benchmarks|examples"
    ends = "py|lua|c|toml|yml|yaml|service"
    return named | set(re.findall(rf"(?<![\w/.-])((?:{folders})/[\w/-]+\.(?:{ends}))\b", text))


def test_documents_name_files_that_there_are() -> None:
    """The whole path from the root or from the package, or its end."""
    files = [
        path.relative_to(ROOT).as_posix()
        for folder in ("tidewarden", "tests", "benchmarks", "deploy", "examples", "docs")
        for path in (ROOT / folder).rglob("*.*")
    ] + [path.name for path in ROOT.glob("*.*")]
    for path, text in DOCS.items():
        gone = {
            one
            for one in files_named(text) - NOT_FILES
            if not any(file == one or file.endswith(f"/{one}") for file in files)
        }
        assert not gone, path.name


def test_docstrings_and_comments_name_modules_that_there_are() -> None:
    """Each ``:mod:`` reference and each file name in Python and Lua."""
    modules = {
        path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".") for path in PYTHON
    }
    modules |= {name.removesuffix(".__init__") for name in modules} | {"pickle"}
    files = {path.name for path in (*ROOT.rglob("*.py"), *LUA)}
    for path, text in (PYTHON | LUA).items():
        referred = {one.lstrip(".") for one in re.findall(r":mod:`~?([\w.]+)`", text)}
        gone = {
            one for one in referred if not any(f".{name}".endswith(f".{one}") for name in modules)
        }
        named = set(re.findall(r"[`( ](?:\w+/)*(\w+\.(?:py|lua))\b", text))
        assert not gone | (named - files), path.name


def prose(text: str) -> str:
    """A document without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(text: str) -> set[str]:
    """What a link may name of a document: its headings, as GitHub writes them."""
    seen: Counter[str] = Counter()
    found: set[str] = set()
    for heading in re.findall(r"^#+ (.*)$", prose(text), re.MULTILINE):
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", shown).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


@functools.cache
def linked_documents() -> dict[Path, str]:
    """All documents, those for contributors and of decisions included."""
    return {
        path: path.read_text("utf-8")
        for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"))
    }


def broken(path: Path, text: str) -> Iterator[str]:
    """The links of a document that lead to no file, or to no heading of it."""
    for link, anchor in LINK.findall(prose(text)):
        target = (path.parent / link).resolve()
        if not target.exists():
            yield link
        elif anchor and anchor not in anchors(linked_documents()[target] if link else text):
            yield f"{link}#{anchor}"


def test_every_link_leads_to_a_file_and_its_heading() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {link}"
        for path, text in linked_documents().items()
        for link in broken(path, text)
    ]
    assert not wrong, "\n".join(wrong)
    assert sum(len(LINK.findall(prose(text))) for text in linked_documents().values()) > 300


def test_what_is_a_broken_link() -> None:
    text = (
        "# A `b`, c & d\n[](#a-b-c--d) [](#e) [](gone.md) [](../README.md#layout) [](https://x/#y)"
    )
    assert list(broken(ROOT / "docs" / "a.md", text)) == ["#e", "gone.md"]
    assert anchors("# a\n## a\n# a\n```\n# b\n```\n# [c](d.md)") == {"a", "a-1", "a-2", "c"}


def test_each_question_has_one_answer() -> None:
    """Each line of the list of tasks is a link; no question stands there twice."""
    text = linked_documents()[ROOT / "docs" / "howto.md"]
    lines = [line for line in text.splitlines() if line.startswith("- ")]
    asked = [re.fullmatch(r"- \[([^\]]+\?)\]\([^)]+\)", line) for line in lines]
    assert [line for line, found in zip(lines, asked, strict=True) if found is None] == []
    questions = Counter(found[1] for found in asked if found)
    assert len(questions) > 50
    assert max(questions.values()) == 1


def test_who_comes_from_elsewhere_is_told_what_is_not_there() -> None:
    """The pages for that are in the list of tasks and on the site, and each is honest."""
    pages = sorted((ROOT / "docs" / "coming_from").glob("*.md"))
    listed = linked_documents()[ROOT / "docs" / "howto.md"]
    site = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert len(pages) > 5
    for page in pages:
        assert f"coming_from/{page.name}" in listed
        assert f"docs/coming_from/{page.name}" in site
        text = linked_documents()[page]
        assert "## What is not there" in text or "**—** means" in text, page.name


def test_documents_name_classes_that_there_are() -> None:
    """Words in the first column of a table of *Coming from* are the other system's."""
    classes = set(re.findall(r"^\s*class (\w+)", "\n".join(PYTHON.values()), re.MULTILINE))
    for path, text in DOCS.items():
        said = prose(text)
        if path.parent.name == "coming_from":
            said = re.sub(r"^\|[^|]*\|", "|", said, flags=re.MULTILINE)
        named = set(re.findall(r"`([A-Z][a-z]+[A-Za-z]*)(?:\.[\w()]+)?`", said))
        assert not named - classes - NOT_OURS, path.name


def private_names_of_the_library() -> set[str]:
    """What PySyncObj's classes keep private, as Python mangles it."""
    found: set[str] = set()
    for path in Path(pysyncobj.__file__).parent.rglob("*.py"):
        for kind in ast.walk(ast.parse(path.read_text("utf-8"))):
            for node in ast.walk(kind) if isinstance(kind, ast.ClassDef) else ():
                name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "name", "")
                if isinstance(name, str) and name.startswith("__") and not name.endswith("__"):
                    found.add(f"_{kind.name.lstrip('_')}{name}")
    return found


def test_the_list_of_files_that_touch_the_librarys_private_names() -> None:
    """
    Those that name a mangled attribute of it; an upgrade of the library is a reading of these.
    """
    private = private_names_of_the_library()
    assert "_SyncObj__raftState" in private
    touching = {
        path.name
        for path, text in PYTHON.items()
        if private & set(re.findall(r"\b_[A-Z]\w*__\w+", text))
    }
    assert all(PACKAGE / "raft" / name in PYTHON for name in touching)
    (told,) = re.findall(r"Only (.*) touch its private names", DOCS[ROOT / "ARCHITECTURE.md"])
    assert set(re.findall(r"`(\w+\.py)`", told)) == touching
