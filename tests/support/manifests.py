"""The manifests for Kubernetes, as their reader has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"


def manifests() -> list[dict[str, Any]]:
    """All objects of all files."""
    files = sorted(KUBERNETES.glob("*.yaml"))
    return [one for path in files for one in yaml.safe_load_all(path.read_text("utf-8"))]


def manifest(kind: str, name: str = "tidewarden") -> dict[str, Any]:
    """The one of this kind and name."""
    (found,) = [
        one for one in manifests() if (one["kind"], one["metadata"]["name"]) == (kind, name)
    ]
    return found
