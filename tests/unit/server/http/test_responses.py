"""JSON answers of the HTTP door."""

from __future__ import annotations

import json

from tidewarden.errors import BadArg, WrongPass
from tidewarden.server.http.responses import problem, respond


def test_no_answer_is_for_a_cache() -> None:
    answer = respond({"a": 1}, 202)
    assert (answer.status, answer.content_type, answer.headers["Cache-Control"]) == (
        202,
        "application/json",
        "no-store",
    )


def test_a_problem_has_the_words_status() -> None:
    answer = problem(BadArg("x must be 1"))
    assert answer.status == 400
    assert json.loads(bytes(answer.body)) == {"error": "BADARG", "message": "x must be 1"}
    assert problem(BadArg("x"), status=405, headers={"Allow": "GET"}).headers["Allow"] == "GET"
    assert problem(WrongPass("x")).headers["WWW-Authenticate"] == "Bearer"
