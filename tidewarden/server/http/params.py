"""Reads path, query and body of an HTTP request; an error names the field that is wrong."""

from __future__ import annotations

import contextlib
import zlib
from typing import Any, TypeVar
from urllib.parse import unquote_to_bytes

import msgspec
from aiohttp import web

from tidewarden.errors import BadArg, TooBig
from tidewarden.server.verbs.json_values import has_many_values

from .field_faults import fault_of

Kind = TypeVar("Kind")


class NoOptions(msgspec.Struct, forbid_unknown_fields=True):
    """Has no fields."""


def check_path(request: web.Request) -> None:
    """Check that the path is UTF-8. Raises: BadArg."""
    try:
        unquote_to_bytes(request.raw_path).decode()
    except UnicodeDecodeError:
        raise BadArg("A path must be UTF-8 text, percent-encoded.") from None


async def body_of(request: web.Request, kind: type[Kind]) -> Kind:
    """
    Read a JSON body as ``kind``, a struct, or a union or list of them; an empty one is ``{}``.

    Raises: BadArg: names the field, what was found there (never text: it may be secret) and what is
    allowed.
    """
    return decoded(await request.read() or b"{}", kind)


def decoded(document: bytes, kind: type[Kind]) -> Kind:
    """Read JSON as ``kind``. Raises: BadArg, as of :func:`body_of`."""
    try:
        return msgspec.json.decode(document, type=kind)
    except msgspec.ValidationError as error:
        sent: Any = msgspec.UNSET  # what follows the fault may be unreadable, or long
        if not has_many_values(document):
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                sent = msgspec.json.decode(document)
        raise BadArg(fault_of(str(error), kind, sent, "field")) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise BadArg("A body is JSON here; what was sent cannot be read as JSON.") from None


def parameters_of(request: web.Request, kind: type[Kind]) -> Kind:
    """
    Read the query as ``kind``, a struct whose fields all have defaults.

    Raises: BadArg: names the parameter, what was found and what is allowed.
    """
    allowed = fields_of(kind)
    for name in request.query:
        if name not in allowed:
            raise BadArg(
                f"There is no parameter {name[:40]!r} here; there are"
                f" {', '.join(allowed) or 'none'}."
            )
        if len(request.query.getall(name)) > 1:
            raise BadArg(f"{name} is given twice.")
    given = dict(request.query)
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise BadArg(fault_of(str(error), kind, given, "parameter")) from None


def fields_of(kind: type[Any]) -> tuple[str, ...]:
    """Return the names that a struct's fields have where they are sent."""
    return tuple(field.encode_name for field in msgspec.structs.fields(kind))


def unpacked(body: bytes, encoding: str, most: int) -> bytes:
    """
    Unpack a body from ``encoding``, a Content-Encoding.

    Raises: BadArg: it is not so packed; TooBig: it has more than ``most`` bytes.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name in ("gzip", "x-gzip"):
        unpacking = zlib.decompressobj(zlib.MAX_WBITS | 16)
    elif name == "deflate":  # some clients send it without its header
        unpacking = zlib.decompressobj(
            zlib.MAX_WBITS if body[:1] and body[0] & 0xF == 8 else -zlib.MAX_WBITS
        )
    else:
        raise BadArg(f"A body may be in the Content-Encoding gzip or deflate: found {name[:40]!r}.")
    try:
        found = unpacking.decompress(body, most + 1)
    except zlib.error:
        found = b""
    if len(found) > most:
        raise TooBig(f"A body may have {most} bytes, unpacked.")
    if not unpacking.eof or unpacking.unused_data:
        raise BadArg("The body is not in the Content-Encoding that is announced.")
    return found
