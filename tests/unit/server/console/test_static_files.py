"""The files of the console's pages as a browser is sent them."""

from __future__ import annotations

import gzip
from importlib.resources import files
from pathlib import Path

import aiohttp
import pytest
from support.doors.http_site import Site, site
from support.inspect import names_of_files

from tidewarden.server.console import static_files
from tidewarden.server.console.static_files import StaticFiles


async def got(
    subject: Site, path: str, **headers: str
) -> tuple[int, aiohttp.typedefs.LooseHeaders, bytes]:
    url = aiohttp.client.URL(f"http://127.0.0.1:{subject.server.port}{path}", encoded=True)
    async with (
        aiohttp.ClientSession(auto_decompress=False) as session,
        session.get(url, headers={"Accept-Encoding": "identity", **headers}) as response,
    ):
        return response.status, response.headers, await response.read()


async def test_the_page_is_for_everybody_and_guarded() -> None:
    async with site(users=True) as subject:
        status, headers, body = await got(subject, "/")
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b"<!doctype html>" in body.lower()
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Frame-Options"] == "DENY"
        again = await got(subject, "/", **{"If-None-Match": f'"x", {headers["ETag"]}'})
        assert (again[0], again[2]) == (304, b"")
        assert again[1]["Content-Security-Policy"] == headers["Content-Security-Policy"]


async def test_every_file_of_the_package_is_there_as_it_is() -> None:
    folder = files("tidewarden.server.console") / "static"
    there = [path for path in Path(str(folder)).rglob("*") if path.is_file()]
    async with site(users=True) as subject:
        for path in there:
            name = path.relative_to(str(folder))
            status, _, body = await got(subject, f"/console/{name}")
            assert (status, body) == (200, path.read_bytes()), name
            packed = await got(subject, f"/console/{name}", **{"Accept-Encoding": "gzip"})
            if packed[1].get("Content-Encoding") == "gzip":
                assert gzip.decompress(packed[2]) == body
            else:
                assert packed[2] == body


@pytest.mark.parametrize(
    "name",
    [
        "../routes.py",
        "..%2Froutes.py",
        "%2e%2e/routes.py",
        "/etc/passwd",
        "static/../../routes.py",
        "login",
        "index.html%00",
        "..%5croutes.py",
    ],
)
async def test_nothing_else_is(name: str) -> None:
    async with site(users=True) as subject:
        status, headers, _ = await got(subject, f"/console/{name}")
        assert status in (401, 404)
        assert headers["Content-Type"] == "application/json"


def test_what_is_no_page_is_not_taken_in(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("x")
    (tmp_path / "notes.py").write_text("x")
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "plot.js").write_text("x" * 5000)
    assert sorted(names_of_files(StaticFiles(tmp_path))) == ["index.html", "parts/plot.js"]


def test_a_mistake_in_packaging_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(static_files, "BYTES_MAX", 10)
    (tmp_path / "index.html").write_text("x" * 11)
    with pytest.raises(ValueError, match="1 files of 11 bytes"):
        StaticFiles(tmp_path)
