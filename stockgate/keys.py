"""API keys of a development stack: made on the first start, plain for people, hashed for the gateways."""

import hashlib
import json
import secrets
from pathlib import Path
from typing import Final

from stockgate.processes import write_private

SCOPES: Final = ("orders", "inventory", "ops", "metrics")
TENANT: Final = "demo"


def ensure_keys(run_dir: Path) -> Path:
    """Make `keys.json` (name → plain key) and `api_keys.json` (hashes); answers the path of the latter.

    Existing files are kept as they are: somebody may have added keys.
    """
    plain_path = run_dir / "keys.json"
    hashed_path = run_dir / "api_keys.json"
    if not (plain_path.exists() and hashed_path.exists()):
        plain = {scope: f"sg_{scope}_{secrets.token_urlsafe(24)}" for scope in SCOPES}
        hashed = [
            {
                "name": scope,
                "tenant": TENANT,
                "scopes": [scope],
                "sha256": hashlib.sha256(key.encode()).hexdigest(),
            }
            for scope, key in plain.items()
        ]
        write_private(plain_path, json.dumps(plain, indent=2) + "\n")
        write_private(hashed_path, json.dumps(hashed, indent=2) + "\n")
    return hashed_path
