"""What /v1/openapi.json promises, held to a real node: by its answers, by schemathesis, by a client."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.cluster.harness import ADMIN
from support.doors.described_node import DescribedNode, described
from support.doors.schema_fuzz import failures
from support.run.installed import npm_folder, python_folder

pytestmark = pytest.mark.timeout(400)
EXAMPLE = Path(__file__).parents[3] / "examples" / "typescript"
FUZZED_S = 15
GRANT = {"refresh_token": "rt-of-nobody", "expires_in": 3600}
ASKED: tuple[tuple[str, str, Any], ...] = (
    ("GET", "/health/live", None),
    ("GET", "/health/ready", None),
    ("GET", "/leader", None),
    ("GET", "/v1/openapi.json", None),
    ("GET", "/v1/status", None),
    ("GET", "/v1/tokens?count=2", None),
    ("POST", "/v1/tokens:read", {"accounts": ["sandbox/user-000000", "sandbox/nobody"]}),
    ("GET", "/v1/tokens/sandbox/user-000000?min_ttl=1", None),
    ("POST", "/v1/tokens/sandbox/user-000000/refresh", None),
    ("POST", "/v1/tokens/codes/made/connect", {"scope": "read"}),
    ("POST", "/v1/tokens/codes/made/device", None),
    ("PUT", "/v1/tokens/sandbox/made", GRANT),
    ("GET", "/v1/accounts/sandbox/made", None),
    ("GET", "/v1/accounts/sandbox/made/why", None),
    ("GET", "/v1/answers/sandbox/made", None),
    ("DELETE", "/v1/tokens/sandbox/made", None),
    ("GET", "/v1/providers", None),
    ("GET", "/v1/providers/sandbox/why", None),
    ("POST", "/v1/providers/sandbox/quarantine", None),
    ("POST", "/v1/providers/sandbox/probe", None),
    ("POST", "/v1/providers/sandbox/release", None),
    ("PUT", "/v1/schedules/hourly", {"every_ms": 3_600_000, "queue": "reports"}),
    ("PUT", "/v1/schedules/a%2Fb", {"cron": "0 3 * * *", "queue": "q", "payload_base64": "/w=="}),
    ("PUT", "/v1/schedules/once", {"at_ms": 4_000_000_000_000, "queue": "q", "lane": "l"}),
    ("GET", "/v1/schedules", None),
    ("GET", "/v1/schedules/hourly", None),
    ("POST", "/v1/schedules/hourly/pause", None),
    ("POST", "/v1/schedules/hourly/resume", None),
    ("POST", "/v1/schedules/hourly/run", None),
    ("POST", "/v1/schedules/hourly/run", {"id": "r1"}),
    ("GET", "/v1/schedules/hourly?count=2", None),
    ("GET", "/v1/schedules:next?ms=86400000", None),
    ("DELETE", "/v1/schedules/hourly", None),
)
"""One request of each kind to the nouns of ``TAGS``, in an order in which each goes well."""
OPEN = ("Finding",)
"""These have figures of their own kinds beside what is described."""
TAGS = {"node", "description", "tokens", "schedules"}
GENERATOR = "openapi-python-client==0.29.*"
MODELS_MAX = 400
"""Classes of a generated client: one for each status of each route would be 1,500."""


@pytest.fixture(scope="module")
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DescribedNode]:
    with described(request, tmp_path_factory.mktemp("described")) as found:
        yield found


def closed(schema: Any) -> Any:
    """A schema by which an answer has no field that is not described."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: value if name in OPEN else closed(value) for name, value in schema.items()}
    return {"additionalProperties": False, **found} if "properties" in found else found


def test_answers_are_as_described(made: DescribedNode) -> None:
    strict = closed(made.document)
    seen = set()
    with made.user() as client:
        for method, path, body in ASKED:
            response = client.request(method, path, json=body)
            plain = path.partition("?")[0]
            operation = made.operation(method, plain)
            seen.add(operation["operationId"])
            described_as = operation["responses"][str(response.status_code)]
            assert response.is_success, (method, path, response.text)
            schema = described_as["content"]["application/json"]["schema"]
            whole = {**closed(schema), "components": strict["components"]}
            if plain != "/v1/openapi.json":  # which is as OpenAPI says
                faults = [
                    one.message for one in Draft202012Validator(whole).iter_errors(response.json())
                ]
                assert not faults, (method, path, response.text)
    operations = [one for path in made.document["paths"].values() for one in path.values()]
    json_answers = {
        one["operationId"]
        for one in operations
        if TAGS & {*one["tags"]}
        and any(
            "application/json" in one["responses"].get(ok, {}).get("content", {})
            for ok in ("200", "202")
        )
    }
    assert json_answers <= seen, "a route of these nouns needs a request above"


def test_schemathesis_finds_nothing(made: DescribedNode) -> None:
    """Its checks: status, content type, schema, headers, auth, methods, rubbish; no 500."""
    cases, found = failures(
        made.document, made.url, made.bearer, examples=2, seed=1, max_time_s=FUZZED_S
    )
    assert not found, "\n\n".join(f"{what}\n{shown}" for what, shown in found.items())
    assert cases > 20  # How many fit into the time is the machine's matter.


def test_a_generated_client_of_typescript_works(made: DescribedNode, tmp_path: Path) -> None:
    """What examples/typescript says is done, and its program is compiled by the types and run."""
    modules = npm_folder("typescript-client", EXAMPLE / "package.json", "the TypeScript client")
    for name in ("package.json", "tsconfig.json", "tasks.ts"):
        (tmp_path / name).write_bytes((EXAMPLE / name).read_bytes())
    (tmp_path / "node_modules").symlink_to(modules / "node_modules")
    (tmp_path / "openapi.json").write_text(json.dumps(made.document))
    environ = os.environ | {
        "TIDEWARDEN_URL": made.url,
        "TIDEWARDEN_TOKEN": f"{ADMIN}:{made.cluster.secret}",
        "ACCOUNT": "sandbox/user-000001",
    }
    said = ""
    for command in (
        [
            "node_modules/.bin/openapi-typescript",
            "openapi.json",
            "-o",
            "tidewarden.d.ts",
            "--default-non-nullable",
            "false",
        ],
        ["node_modules/.bin/tsc"],
        ["node", "built/tasks.js"],
    ):
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=environ,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        said = done.stdout
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    assert "took welcome-1: hello" in said
    assert "done: true" in said
    assert "sandbox/user-000001: a token of generation 1" in said
    assert "no account sandbox/nobody: NOTFOUND" in said


@pytest.fixture(scope="module")
def generated(made: DescribedNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder whose package ``generated`` is a client of Python, made of the description."""
    tool = python_folder(GENERATOR, "the client of Python")
    folder = tmp_path_factory.mktemp("python")
    (folder / "openapi.json").write_text(json.dumps(made.document))
    (folder / "config.json").write_text(json.dumps({"post_hooks": []}))
    command = [sys.executable, "-m", "openapi_python_client", "generate", "--meta", "none"]
    command += ["--path", "openapi.json", "--config", "config.json", "--output-path", "generated"]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(tool)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "will not be generated" not in done.stderr, done.stderr
    sys.path.insert(0, str(folder))
    yield folder / "generated"
    sys.path.remove(str(folder))


def test_a_generated_client_of_python_has_a_class_for_each_body(
    made: DescribedNode, generated: Path
) -> None:
    """Each operation can be called with what is described as its example."""
    assert len(list((generated / "models").glob("*.py"))) < MODELS_MAX
    called = set()
    for path in made.document["paths"].values():
        for operation in path.values():
            content = operation.get("requestBody", {}).get("content", {})
            name = re.sub("([A-Z])", r"_\1", operation["operationId"]).lower()
            module = importlib.import_module(f"generated.api.{operation['tags'][0]}.{name}")
            if "application/json" not in content:
                continue
            hint = typing.get_type_hints(module._get_kwargs)["body"]
            kinds = [one for one in typing.get_args(hint) or (hint,) if hasattr(one, "from_dict")]
            body = kinds[0].from_dict(content["application/json"]["example"])
            names = inspect.signature(module._get_kwargs).parameters.values()
            asked = module._get_kwargs(
                *("x" for one in names if one.kind is one.POSITIONAL_OR_KEYWORD), body=body
            )
            whole = {
                **content["application/json"]["schema"],
                "components": made.document["components"],
            }
            assert not [*Draft202012Validator(whole).iter_errors(asked["json"])], name
            called.add(operation["operationId"])
    assert {"tasksPut", "tasksTake", "buriedKick", "buriedMove", "tokensPut"} <= called


def test_a_generated_client_of_python_works(made: DescribedNode, generated: Path) -> None:
    """Also with a body of one or many, and with one that chooses by a truth."""
    asked, models = (importlib.import_module(f"generated.{name}") for name in ("client", "models"))

    def answer(name: str, *names: str, body: Any) -> Any:
        module = importlib.import_module(f"generated.api.{name}")
        return module.sync(*names, client=client, body=body)

    with asked.AuthenticatedClient(
        base_url=made.url,
        token=made.bearer["Authorization"].removeprefix("Bearer "),
        raise_on_unexpected_status=True,
    ) as client:
        one = models.PutTask(id="a", payload="hello", priority=7)
        assert answer("tasks.tasks_put", "python", body=one).id == "a"
        many = [models.PutTask(id=name) for name in ("b", "c")]
        put = answer("tasks.tasks_put", "python", body=many)
        assert [each.id for each in put.tasks] == ["b", "c"]
        taken = answer("tasks.tasks_take", "python", body=models.TakeOne(count=3)).tasks
        assert [(task.id, task.payload) for task in taken[:1]] == [("a", "hello")]
        for task in taken:
            end = models.Bury(lease=task.lease, reason="tried")
            assert answer("tasks.tasks_bury", "python", task.id, body=end).done
        assert answer("buried.buried_kick", "python", body=models.Kick(id="a")).kicked == 1
        some = models.Kick(count=1, reason_prefix="tried")
        assert answer("buried.buried_kick", "python", body=some).kicked == 1
        rest = models.Move(to="python.late", all_=True)
        assert answer("buried.buried_move", "python", body=rest).moved == 1
        refused = answer("buried.buried_kick", "python", body=models.Kick())
        assert refused.error == "BADARG"
