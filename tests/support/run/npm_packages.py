"""Packages of npm that tests use, installed into a cache folder once."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

INSTALL_S = 300.0


def npm_folder(name: str, package_json: Path, what: str) -> Path:
    """
    The folder whose ``node_modules`` has what a ``package.json`` asks for, installed once.

    Skips, saying that ``what`` needs it, where that cannot be had.
    """
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip(f"{what} needs node and npm on PATH: apt-get install nodejs npm")
    package = package_json.read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "tidewarden" / f"{name}-{hashlib.sha256(package).hexdigest()[:12]}"
    if not (folder / "node_modules").is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=folder.parent))
        (fresh / "package.json").write_bytes(package)
        command = [
            npm,
            "install",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--no-package-lock",
            "--loglevel=error",
        ]
        try:
            done = subprocess.run(
                command, cwd=fresh, capture_output=True, text=True, timeout=INSTALL_S, check=False
            )
            problem = done.stderr.strip()[-300:] if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = f"not within {INSTALL_S:g} s"
        if problem:
            shutil.rmtree(fresh)
            pytest.skip(f"npm could not install what {what} needs: {problem}")
        with contextlib.suppress(OSError):  # another run was first
            fresh.rename(folder)
        shutil.rmtree(fresh, ignore_errors=True)
    return folder
