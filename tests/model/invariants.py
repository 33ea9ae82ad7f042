"""What must hold in every state, and what a settled one is."""

from tests.model.protocol import Protocol
from tests.model.state import Kind, MySQL, Quantities, Space, State

_GIVES_BACK: tuple[Kind, ...] = ("release", "return")


def broken(protocol: Protocol, state: State) -> str | None:
    """The invariant that does not hold in this state, in words."""
    sql = state.mysql
    if sql.alarm:
        return f"the worker stops: {sql.alarm}"
    units = protocol.configuration.units
    alive = [order for order in range(len(state.clients)) if _alive(protocol, state, order)]
    if len(alive) > units:
        return f"oversold: orders {alive} were promised {units} unit"
    return (
        _miscounted(units, state)
        or _written_wrongly(state)
        or _contradicted(state)
        or _lost(protocol, state)
        or _overtaken(protocol, state)
    )


def settled(protocol: Protocol, state: State) -> bool:
    """Nobody waits, nothing is under way, the shard decides, and where Redis does, both stores agree."""
    sql = state.mysql
    if state.requests or state.queue or state.late or state.delivered_twice:
        return False
    if sql.mode == "opening" or (sql.hot and state.away):
        return False
    if sql.switch and not (sql.mode == "db" and sql.switch.to == "hot" and state.away):
        return False  # a switch to hot waits for Redis, and MySQL decides meanwhile
    done = all(
        client.at == len(program)
        for client, program in zip(state.clients, protocol.configuration.programs, strict=True)
    )
    stage = "relay" if sql.hot else "db"
    leads = any(leader.stage == stage and leader.connected and not leader.wire for leader in state.leaders)
    rows = sorted((event.order, event.kind) for event in sql.ledger)
    return (
        done
        and leads
        and all(rows.count(answer) == 1 for answer in state.answered)
        and (not sql.hot or any(_current(space, sql) and _agrees(space, state) for space in state.redis.spaces))
    )


def _current(space: Space, sql: MySQL) -> bool:
    return space.epoch == sql.epoch and not space.fenced


def _alive(protocol: Protocol, state: State, order: int) -> bool:
    """Promised, and the client has not begun to give it back."""
    client = state.clients[order]
    program = protocol.configuration.programs[order]
    asked = program[: client.at + (client.waits or client.attempt > 0)]
    return (order, "reserve") in state.answered and not any(kind in asked for kind in _GIVES_BACK)


def _total(quantities: Quantities) -> int:
    return sum(quantities)


def _miscounted(units: int, state: State) -> str | None:
    quantities = state.mysql.quantities
    if _total(quantities) != units or min(quantities) < 0:
        return f"MySQL's quantities are wrong: {quantities}"
    for space in state.redis.spaces:
        if space.opened and (_total(space.quantities) != units or min(space.quantities) < 0):
            return f"Redis' quantities are wrong: {space.quantities}"
    return None


def _written_wrongly(state: State) -> str | None:
    """Of MySQL's rows: no change twice, none that was refused where refusals bind, and no switch after it was aborted."""
    sql = state.mysql
    rows = [(event.order, event.kind) for event in sql.ledger]
    for order, kind in state.refused:
        if (order, kind) in rows:
            return f"{kind} of order {order} was refused and has a ledger row"
    if len(set(rows)) < len(rows):
        return f"the ledger has a change twice: {rows}"
    if sql.closed_for in sql.aborted:
        return f"switch {sql.closed_for} was aborted, and is carried out"
    return None


def _contradicted(state: State) -> str | None:
    if state.contradicted is None:
        return None
    order, kind = state.contradicted
    return f"{kind} of order {order} was refused, and what it rests on had been answered 2xx"


def _lost(protocol: Protocol, state: State) -> str | None:
    """Every change answered with 2xx has its one row, or will have it from the queue alone."""
    ledger = state.mysql.ledger
    rows = [(event.order, event.kind) for event in ledger]
    if all(answer in rows for answer in state.answered):
        return None
    if state.purged:
        return None  # a queue that loses messages is made whole from Redis: see `settled`
    drained = protocol.drained(state.mysql, state.queue)
    if drained.alarm:
        return f"the queue holds what stops the worker: {drained.alarm}"
    rows = [(event.order, event.kind) for event in drained.ledger]
    for order, kind in state.answered:
        if (order, kind) not in rows:
            return f"lost: {kind} of order {order} was answered 2xx"
    return None


def _overtaken(protocol: Protocol, state: State) -> str | None:
    """What was answered before another change was asked for comes before it in the ledger. The row's epoch never falls, and
    every row of the ledger bears the one of its time and the next seq: its place is its (epoch, seq).
    """
    if not state.earlier:
        return None
    rows = [(event.order, event.kind) for event in protocol.drained(state.mysql, state.queue).ledger]
    place = {row: number for number, row in enumerate(rows)}
    for first, then in state.earlier:
        if first in place and then in place and place[first] > place[then]:
            return f"real-time order: {first} was answered before {then} was asked for, and comes after it"
    return None


def _agrees(space: Space, state: State) -> bool:
    sql = state.mysql
    return space.last == sql.applied_m and (
        not space.opened
        or (
            space.quantities == sql.quantities
            and space.seq == len(sql.ledger)
            and all(line is None or line.kind == kind for line, kind in zip(space.orders, sql.lines, strict=True))
        )
    )
