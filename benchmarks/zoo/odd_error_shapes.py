"""Revoked accounts whose provider says so in a shape of its own."""

from __future__ import annotations

from typing import Any

from .a_few_unauthorized import AFewUnauthorized
from .provider import Reply
from .scenario import Rule, given

SHAPES: dict[str, tuple[int, Any]] = {
    "strava": (
        400,
        {
            "message": "Bad Request",
            "errors": [{"resource": "RefreshToken", "field": "refresh_token", "code": "invalid"}],
        },
    ),
    "fitbit": (
        400,
        {
            "errors": [{"errorType": "invalid_grant", "message": "Refresh token invalid: x."}],
            "success": False,
        },
    ),
    "facebook": (
        400,
        {
            "error": {
                "message": "Error validating access token",
                "type": "OAuthException",
                "code": 190,
            }
        },
    ),
    "numeric": (400, {"code": 1027, "msg": "token is invalid"}),
}


class OddErrorShapes(AFewUnauthorized):
    """5 % are dead and answered as Strava, Fitbit and Facebook do, or by a number."""

    rule = Rule(
        "a refusal in words that nobody knows refuses the grant",
        (
            (
                "tokens/provider/token_response.py",
                'return "unavailable" if _is_page(answer) else "rejected"',
                'return "unavailable"',
            ),
        ),
    )
    factor = 20.0
    life_s = 1200.0
    margin_s = 300.0
    tokens = given()
    bad = 100
    ended: tuple[str, ...] = ("dead",)
    quick = given(fleet=300, bad=16, factor=60.0)
    shapes = tuple(Reply(status, body, kind=name) for name, (status, body) in SHAPES.items())
