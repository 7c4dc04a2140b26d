"""Which requests change something, and which of their words the audit log shows."""

from __future__ import annotations

import pytest

from tidewarden.server.audit.audited import Audited, first, subcommand, unless, when, whole


@pytest.mark.parametrize(
    ("audited", "request_", "shown"),
    [
        (whole(), [b"R.VIEW", b"a", b"b"], [b"a", b"b"]),
        (first(1), [b"Q.PUT", b"mail", b"secret"], [b"mail"]),
        (when(b"SET"), [b"Q.CONFIG", b"mail", b"set", b"shards", b"4"], [b"mail", b"set", b"shards", b"4"]),
        (when(b"SET"), [b"Q.CONFIG", b"mail"], None),
        (subcommand(b"KILL"), [b"CLIENT", b"kill", b"ID", b"5"], [b"kill", b"ID", b"5"]),
        (subcommand(b"KILL"), [b"CLIENT", b"SETNAME", b"kill"], None),
        (subcommand(b"KILL"), [b"CLIENT"], None),
        (unless(b"READ"), [b"R.PRIMARY", b"n1"], [b"n1"]),
        (unless(b"READ"), [b"R.PRIMARY", b"n1", b"read"], None),
    ],
)  # fmt: skip
def test_what_is_shown(audited: Audited, request_: list[bytes], shown: list[bytes] | None) -> None:
    assert audited.shown(request_) == shown
