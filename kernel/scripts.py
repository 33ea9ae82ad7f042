"""What a Lua script is to the Redis door: its source, and the name by which Redis caches it."""

import hashlib
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Script:
    """A script as it is sent; made by `lua.load(name)` alone."""

    name: str
    source: str
    sha: str
    """sha1 of the source in hex, as Redis computes it."""

    @classmethod
    def of(cls, name: str, source: str) -> "Script":
        """Name a source."""
        return cls(name, source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest())
