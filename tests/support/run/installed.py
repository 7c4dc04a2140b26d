"""Packages that tests use and the product does not, installed into a cache folder once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

INSTALL_S = 300.0


def npm_folder(name: str, package_json: Path, what: str) -> Path:
    """
    The folder whose ``node_modules`` has what a ``package.json`` asks for.

    Skips, saying that ``what`` needs it, where that cannot be had.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip(f"{what} needs node and npm on PATH: apt-get install nodejs npm")
    package = package_json.read_bytes()

    def command(fresh: Path) -> list[str]:
        (fresh / "package.json").write_bytes(package)
        quiet = ("--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error")
        return [npm, "install", "--ignore-scripts", *quiet]

    return _installed(name, package, command, what)


def python_folder(requirement: str, what: str) -> Path:
    """
    The folder that has this Python package, and all that it needs, to put before ``sys.path``.

    So it may need other versions than the product does. Skips as :func:`npm_folder`.
    """

    def command(fresh: Path) -> list[str]:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
        return [*pip, "install", "--target", str(fresh), requirement]

    key = f"{requirement} {sys.version_info[:2]}".encode()
    return _installed(requirement.partition("=")[0], key, command, what)


def _installed(name: str, key: bytes, command: Callable[[Path], list[str]], what: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tidewarden" / f"{name}-{hashlib.sha256(key).hexdigest()[:12]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder.parent))
        try:
            done = subprocess.run(
                command(fresh),
                cwd=fresh,
                capture_output=True,
                text=True,
                timeout=INSTALL_S,
                check=False,
            )
            problem = done.stderr.strip()[-300:] if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"not within {INSTALL_S:g} s"
        if problem:
            shutil.rmtree(fresh)
            pytest.skip(f"what {what} needs could not be installed: {problem}")
        with contextlib.suppress(OSError):  # another run was first
            fresh.rename(folder)
        shutil.rmtree(fresh, ignore_errors=True)
    return folder
