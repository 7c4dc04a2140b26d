"""The files of the console's pages, read from the package once and kept in memory."""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from aiohttp import web

from tidewarden.errors import NotFound

FILES_MAX = 200
BYTES_MAX = 4 << 20
"""Of all files together: a mistake in packaging shows here, and not in a node's memory."""
GZIP_BYTES = 1024  # what is shorter goes as it is
MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".txt": "text/plain; charset=utf-8",
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
GUARDS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
# A node that was brought up to date has other files under the same names: a browser asks each time,
# and is mostly told that nothing has changed.
CACHE = "no-cache"


@dataclass(frozen=True, slots=True)
class StaticFile:
    """Holds one file as it is sent; ``packed`` is empty where packing it saves little."""

    body: bytes
    packed: bytes
    media: str
    etag: str


class StaticFiles:
    """
    Answers ``/`` and ``/console/…``.

    Only what stands in the package's folder is there, for names are looked up in a table.
    """

    def __init__(self, folder: Traversable | None = None) -> None:
        """
        Read ``folder``, or the package's own where it is None.

        Raises: ValueError: there are more files than any console needs.
        """
        folder = files(__package__).joinpath("static") if folder is None else folder
        self._files = dict(_read(folder, ""))
        size = sum(len(one.body) for one in self._files.values())
        if len(self._files) > FILES_MAX or size > BYTES_MAX:
            raise ValueError(f"{folder} has {len(self._files)} files of {size} bytes")

    async def page(self, request: web.Request) -> web.Response:
        """Return the console's page, which loads the rest."""
        return self._answer(request, "index.html")

    async def file(self, request: web.Request) -> web.Response:
        """Return a file of the console's pages."""
        return self._answer(request, request.match_info["file"] or "index.html")

    def _answer(self, request: web.Request, name: str) -> web.Response:
        found = self._files.get(name)
        if found is None:
            raise NotFound(f"The console has no file {name[:200]!r}.")
        headers = {
            **GUARDS,
            "Cache-Control": CACHE,
            "ETag": found.etag,
            "Vary": "Accept-Encoding",
        }
        tags = request.headers.get("If-None-Match", "").split(",")
        if found.etag.removeprefix("W/") in (tag.strip().removeprefix("W/") for tag in tags):
            return web.Response(status=304, headers=headers)
        body = found.body
        if found.packed and "gzip" in request.headers.get("Accept-Encoding", ""):
            headers["Content-Encoding"] = "gzip"
            body = found.packed
        return web.Response(body=body, headers={**headers, "Content-Type": found.media})


def _read(folder: Traversable, prefix: str) -> list[tuple[str, StaticFile]]:
    found: list[tuple[str, StaticFile]] = []
    for one in folder.iterdir():
        name = prefix + one.name
        if one.is_dir():
            found += _read(one, f"{name}/")
        elif media := MEDIA.get("." + one.name.rpartition(".")[2].lower()):
            body = one.read_bytes()
            packed = gzip.compress(body, mtime=0) if len(body) >= GZIP_BYTES else b""
            if len(packed) > 0.9 * len(body):
                packed = b""
            etag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
            found.append((name, StaticFile(body, packed, media, etag)))
    return found
