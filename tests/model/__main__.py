"""Search by hand: `python -m tests.model --remove chain_check --random 20000 --seed 1`."""

import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable

from tests.model.configurations import COMPLETE, NEEDED, RANDOM
from tests.model.explorer import Result, explore, walk
from tests.model.protocol import Configuration, Protocol
from tests.model.state import Guard


def main() -> int:
    parser = ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--remove", type=Guard, choices=list(Guard), help="search without this guard")
    parser.add_argument("--random", type=int, metavar="RUNS", help="random walks, not every state")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    guard: Guard | None = arguments.remove
    runs: int | None = arguments.random
    seed: int = arguments.seed

    def by_walks(protocol: Protocol) -> Result:
        return walk(protocol, seed, runs or 0)

    if runs is not None:
        return _report(by_walks, RANDOM, guard)
    return _report(explore, _needed(guard) if guard else COMPLETE, guard)


def _needed(guard: Guard) -> tuple[Configuration, ...]:
    return tuple(needed.configuration for needed in NEEDED[guard])


def _report(
    search: Callable[[Protocol], Result],
    configurations: tuple[Configuration, ...],
    guard: Guard | None,
) -> int:
    """Exit code 1 if anything was found, so that a script can ask."""
    removed = frozenset((guard,)) if guard else frozenset[Guard]()
    for configuration in configurations:
        started = time.monotonic()
        result = search(Protocol(configuration._replace(removed=removed)))
        seconds = time.monotonic() - started
        sys.stdout.write(f"{configuration.name} ({seconds:.1f} s): {result}\n")
        sys.stdout.flush()
        if result.violation:
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
