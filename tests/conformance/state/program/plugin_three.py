"""A plug-in, which registers itself."""

from __future__ import annotations

from state.program import registry


class Plugin(registry.Base):
    size = 3


registry.LOADERS["plugin"] = lambda index: 3
