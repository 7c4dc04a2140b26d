"""What /v1/openapi.json promises, held to a real node: by its answers, by schemathesis, by a client."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from support.cluster.harness import ADMIN
from support.doors.described_node import DescribedNode, described
from support.doors.schema_fuzz import failures
from support.run.npm_packages import npm_folder

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
    ("DELETE", "/v1/schedules/hourly", None),
)
"""One request of each kind to the nouns of ``TAGS``, in an order in which each goes well."""
OPEN = ("Finding",)
"""These have figures of their own kinds beside what is described."""
TAGS = {"node", "description", "tokens", "schedules"}


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
