"""Locust against a running stack, bounded in time, with the audit at the end: `make load`, or `--help`."""

import argparse
import asyncio
import json
import os
import secrets
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from client.answers import Refused
from client.stockgate import StockgateClient

LOCUSTFILE = Path(__file__).with_name("locustfile.py")


async def prepare(url: str, key: str, prefix: str, keys: int, units: int) -> None:
    """Create the keys that shoppers ask for; raises SystemExit on a refusal."""
    async with StockgateClient(url, key) as client:
        for number in range(keys):
            name = f"{prefix}{number}"
            answer = await client.create_inventory(name, item_id=name, init_quantity=units, request_no=f"create-{name}")
            if isinstance(answer, Refused):
                raise SystemExit(f"{name} was refused: {answer.code}: {answer.problem.detail}")


async def audit(url: str, key: str) -> bool:
    """Whether the server's invariants hold after the load."""
    async with StockgateClient(url, key) as client:
        return (await client.audit(deadline_s=120)).ok


def read_stack(run_dir: Path) -> tuple[str, dict[str, str]]:
    """Address and keys of the running stack; raises SystemExit with what to do where none runs."""
    try:
        stack = json.loads((run_dir / "stack.json").read_text())
        return stack["gateway"], json.loads((run_dir / "keys.json").read_text())
    except FileNotFoundError:
        raise SystemExit(f"no stack runs in {run_dir}: start it with `stockgate up --detach`") from None


def run_locust(url: str, arguments: argparse.Namespace, environment: dict[str, str]) -> dict[str, Any]:
    """Run Locust without its web page; answers its totals. Raises RuntimeError with its words when it cannot run."""
    with tempfile.TemporaryDirectory(prefix="stockgate-load-") as folder:
        command = [
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"),
            *("--host", url, "-u", str(arguments.users), "-r", str(arguments.users), "-t", f"{arguments.seconds}s"),
            *("--json-file", f"{folder}/result", "--loglevel", "WARNING"),
        ]
        process = subprocess.run(
            command, env={**os.environ, **environment}, stdout=sys.stderr, check=False, timeout=arguments.seconds + 60
        )
        result = Path(folder, "result.json")
        if not result.exists():
            raise RuntimeError(f"locust ended with {process.returncode} and left no result")
        rows: list[dict[str, Any]] = json.loads(result.read_text())
    return {
        "requests": sum(row["num_requests"] for row in rows),
        "failures": sum(row["num_failures"] for row in rows),
        "by_name": {row["name"]: row["num_requests"] for row in rows},
    }


def main() -> int:
    """Prepare, load, audit; exit code 0 only if nothing failed and the audit holds."""
    parser = argparse.ArgumentParser(prog="loadtests.load", description=__doc__)
    parser.add_argument("--run-dir", type=Path, default=Path(".run"))
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--keys", type=int, default=100)
    parser.add_argument("--units", type=int, default=500, help="stock of each key")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    arguments = parser.parse_args()
    url, keys = read_stack(arguments.run_dir)
    prefix = f"load-{secrets.token_hex(3)}-"
    asyncio.run(prepare(url, keys["inventory"], prefix, arguments.keys, arguments.units))
    environment = {"ORDERS_KEY": keys["orders"], "KEY_PREFIX": prefix, "KEYS": str(arguments.keys)}
    totals = run_locust(url, arguments, environment)
    ok = asyncio.run(audit(url, keys["ops"]))
    result = {"ok": ok and totals["failures"] == 0, "per_s": round(totals["requests"] / arguments.seconds, 1), **totals}
    if arguments.json:
        print(json.dumps({**result, "audit": "ok" if ok else "violated"}))
    else:
        print(f"{result['requests']:,} requests, {result['per_s']:,}/s, {result['failures']} failures")
        print(f"audit {'ok' if ok else 'violated'}")
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
