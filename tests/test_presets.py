"""The presets as data; that each can be used is shown beside the reading of providers."""

from __future__ import annotations

import dataclasses

from tidewarden.presets import PRESETS
from tidewarden.provider import Provider


def test_presets_say_only_what_a_provider_may_have() -> None:
    known = {item.name for item in dataclasses.fields(Provider) if item.metadata}
    for preset in PRESETS.values():
        assert set(preset.settings) <= known - {"preset", "client_id"}, preset.name
        assert "rotation" in preset.settings, preset.name
