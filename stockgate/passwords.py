"""Random passwords of one run directory, made on first use and kept in a file that only its owner can read."""

import json
import secrets
from pathlib import Path

from stockgate.processes import write_private


class Passwords:
    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, name: str) -> str:
        try:
            known: dict[str, str] = json.loads(self._path.read_text())
        except FileNotFoundError:
            known = {}
        if name not in known:
            # Hexadecimal: at home in URLs, in SQL literals and in every configuration format.
            known[name] = secrets.token_hex(20)
            write_private(self._path, json.dumps(known, indent=2) + "\n")
        return known[name]
