"""Revoked accounts whose provider says so in a shape of its own."""

from __future__ import annotations

from typing import Any

from .a_few_unauthorized import AFewUnauthorized
from .provider import Reply

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

    bad_share = 0.05
    shapes = tuple(Reply(status, body, kind=name) for name, (status, body) in SHAPES.items())
