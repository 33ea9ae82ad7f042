"""The protocol holds with all its guards, and each guard is needed."""

import sys

import pytest

from tests.model.configurations import COMPLETE, NEEDED, RANDOM, REFUSALS, Needed
from tests.model.explorer import Result, explore, walk
from tests.model.protocol import Configuration, Protocol
from tests.model.state import Guard

WALKS = 1_500
SEED = 20_240_229


def _name(value: object) -> str | None:
    if isinstance(value, Needed):
        return value.configuration.name
    return value.name if isinstance(value, Configuration) else None


def _printed(name: str, result: Result) -> Result:
    """Seen with `pytest -rP`: how much was searched, and how a violation comes about."""
    sys.stdout.write(f"{name}: {result}\n")
    return result


@pytest.mark.parametrize("configuration", COMPLETE, ids=_name)
def test_no_interleaving_breaks_the_protocol(configuration: Configuration):
    result = _printed(configuration.name, explore(Protocol(configuration)))
    assert result.violation is None, str(result)


@pytest.mark.parametrize("configuration", RANDOM, ids=_name)
def test_no_random_run_breaks_the_protocol(configuration: Configuration):
    result = _printed(configuration.name, walk(Protocol(configuration), SEED, WALKS))
    assert result.violation is None, str(result)


def test_every_guard_is_taken_out_somewhere():
    assert set(NEEDED) == set(Guard)


@pytest.mark.parametrize(
    ("guard", "needed"), [(guard, needed) for guard, worlds in NEEDED.items() for needed in worlds], ids=_name
)
def test_without_a_guard_there_is_a_counterexample(guard: Guard, needed: Needed):
    configuration = needed.configuration._replace(removed=frozenset((guard,)))
    result = _printed(f"without {guard}", explore(Protocol(configuration)))
    assert result.violation is not None, f"{guard} is not needed: {result}"
    assert needed.breaks in result.violation
    assert result.trace


@pytest.mark.parametrize("configuration", REFUSALS, ids=_name)
def test_a_refusal_does_not_bind(configuration: Configuration):
    """A limit, not a wish: if this fails, the protocol has become stronger than its page says."""
    result = _printed(configuration.name, explore(Protocol(configuration)))
    assert result.violation is not None
    assert "was refused" in result.violation
