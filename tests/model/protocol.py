"""The protocol as a pure function: from a state to every step that anyone can take in it.

A step is what one side does without being interrupted: one script, one transaction, one message
moved. Whoever takes part may stop for ever between two of its steps, and any other go first.
What only waits (the answer of Redis under way, say) has no step of its own where a later step of
the same actor gives the same.

A gateway acts on whatever it once read of the shard row: it may ask Redis in any epoch, and MySQL at any time. Where MySQL
decides, a transaction is two steps. The first locks the row in share mode, checks the mode and reads the order. The second
is all the rest: with one key, the lock on its balance lets no two transactions be between reading it and COMMIT. Who changes
the row waits until no transaction holds the share lock.
"""

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from tests.model.state import (
    MOVES,
    Client,
    Entry,
    Event,
    Faults,
    Guard,
    Kind,
    Leader,
    Line,
    Lookup,
    Message,
    Mode,
    MySQL,
    Quantities,
    Redis,
    Request,
    Space,
    Stage,
    State,
    Switch,
    Ticket,
    Transaction,
    chained,
    moved,
)

T = TypeVar("T")


class Configuration(NamedTuple):
    """Who takes part, what they want, and what may go wrong."""

    name: str
    programs: tuple[tuple[Kind, ...], ...]
    faults: Faults
    units: int = 1
    gateways: int = 2
    candidates: int = 2
    evicts: bool = False
    trims: bool = False
    filters: bool = False  # with the filter of order ids that left Redis: docs/adr/0008
    refusals_bind: bool = False  # check more than is promised: see `configurations.REFUSALS`
    mode: Mode = "hot"  # at the beginning
    timed: bool = False  # check the order in time too: it costs states
    removed: frozenset[Guard] = frozenset()


class Step(NamedTuple):
    label: str
    state: State
    fault: bool = False


class Decision(NamedTuple):
    """`space` is None for NOT_LOADED; an `accepted` without a ticket needs no waiting."""

    space: Space | None
    accepted: bool = False
    ticket: Ticket | None = None


class Protocol:
    def __init__(self, configuration: Configuration) -> None:
        self.configuration = configuration
        # Attributes instead of a set look-up: they are read in every step of every state.
        holds = {guard: guard not in configuration.removed for guard in Guard}
        self.chain_check = holds[Guard.CHAIN_CHECK]
        self.terms = holds[Guard.TERMS]
        self.digest_named = holds[Guard.DIGEST_NAMED]
        self.close_queued = holds[Guard.CLOSE_QUEUED]
        self.opened_set = holds[Guard.OPENED_SET]
        self.epoch_in_names = holds[Guard.EPOCH_IN_NAMES]
        self.gap_held = holds[Guard.GAP_HELD]
        self.lookup = holds[Guard.LOOKUP]
        self.lookup_fresh = holds[Guard.LOOKUP_FRESH]
        self.lookup_epoch = holds[Guard.LOOKUP_EPOCH]
        self.known_named = holds[Guard.KNOWN_NAMED]
        self.known_applied = holds[Guard.KNOWN_APPLIED]
        self.filter_evicted = holds[Guard.FILTER_EVICTED]
        self.filter_complete = holds[Guard.FILTER_COMPLETE]
        self.share_lock = holds[Guard.SHARE_LOCK]
        self.exclusive_open = holds[Guard.EXCLUSIVE_OPEN]
        self.epoch_per_attempt = holds[Guard.EPOCH_PER_ATTEMPT]
        self.claim_close = holds[Guard.CLAIM_CLOSE]
        self.db_epoch = holds[Guard.DB_EPOCH]
        self.order_unique = holds[Guard.ORDER_UNIQUE]
        self.opening_to_db = holds[Guard.OPENING_TO_DB]
        self.done_with_hot = holds[Guard.DONE_WITH_HOT]
        self.stand_without_redis = holds[Guard.STAND_WITHOUT_REDIS]
        self._drained: dict[tuple[MySQL, tuple[Message, ...]], MySQL] = {}

    def initial(self) -> State:
        """Epoch 1 is open, nothing is loaded, candidate 0 leads. Or MySQL decides, and Redis holds nothing."""
        orders = len(self.configuration.programs)
        hot = self.configuration.mode == "hot"
        return State(
            redis=Redis(1, (Space(False, 1, 1, (None,) * orders),) if hot else ()),
            mysql=MySQL(Quantities(self.configuration.units), (None,) * orders, mode=self.configuration.mode),
            queue=(),
            leaders=(
                Leader("relay" if hot else "db", connected=True, term=1, epoch=1),
                *(Leader(),) * (self.configuration.candidates - 1),
            ),
            clients=(Client(),) * orders,
            faults=self.configuration.faults,
            remembered=() if self.digest_named else ((0, 0),) * self.configuration.gateways,
        )

    def steps(self, state: State) -> Iterator[Step]:
        for order in range(len(state.clients)):
            yield from self._client_steps(state, order)
        for request in state.requests:
            yield from self._request_steps(state, request)
        if not self.digest_named:
            yield from self._remember_steps(state)
        for index, leader in enumerate(state.leaders):
            yield from self._leader_steps(state, index, leader)
        yield from self._worker_steps(state)
        yield from self._late_steps(state)
        yield from self._redis_returns(state)
        if state.faults.total:
            yield from self._fault_steps(state)

    # --- clients and gateways -------------------------------------------------

    def _client_steps(self, state: State, order: int) -> Iterator[Step]:
        client = state.clients[order]
        program = self.configuration.programs[order]
        if client.waits or client.at == len(program):
            return
        gateway = (order + client.attempt) % self.configuration.gateways
        request = Request(order, program[client.at], client.attempt, gateway)
        if self.configuration.timed and not client.attempt:
            before = {(answer, (order, request.kind)) for answer in state.answered if answer[0] != order}
            state = state._replace(earlier=state.earlier | before)
        yield Step(
            f"client of order {order} asks gateway {gateway} to {request.kind}",
            state._replace(
                clients=_put(state.clients, order, client._replace(waits=True)),
                requests=tuple(sorted((*state.requests, request), key=_request_key)),
            ),
        )

    def _request_steps(self, state: State, request: Request) -> Iterator[Step]:
        who = f"gateway {request.gateway} ({request.kind} {request.order}{_attempt(request)})"
        if request.ticket is not None:
            yield from self._waiting_steps(state, request, request.ticket, who)
            return
        if request.transaction is not None:
            yield from self._commit_steps(state, request, request.transaction, who)
            return
        for space in () if state.away else state.redis.spaces:
            # Without a lookup any epoch will do: who knows how old its knowledge is?
            if space.fenced or not self._speaks_of(request.lookup, space):
                continue
            if any(_has_forgotten(space, known) for known in self._known(state, request)):
                continue
            decision = self._decide(space, request)
            if decision.space is not None:
                yield Step(
                    f"{who} decides in epoch {space.epoch}: {_outcome(decision)}",
                    self._decided(state, request, space, decision, decision.space),
                )
            elif request.lookup:
                yield Step(f"{who}: NOT_LOADED", _with_request(state, request, request._replace(lookup=None)))
        sql = state.mysql
        if request.lookup is None:
            if sql.hot:
                line = sql.lines[request.order]
                lookup = Lookup(sql.epoch, sql.applied_m, sql.applied_digest, sql.quantities, len(sql.ledger), line)
                yield Step(
                    f"{who} looks up: epoch {lookup.epoch}, applied {lookup.applied_m}, "
                    f"order {lookup.line or 'unknown'}, available {lookup.quantities.available}",
                    _with_request(state, request, request._replace(lookup=lookup)),
                )
        elif sql.epoch != request.lookup.epoch or sql.mode == "db":
            yield Step(
                f"{who} learns of epoch {sql.epoch}",
                _with_request(state, request, request._replace(lookup=None)),
            )
        if request.lookup is None and sql.mode == "db" and not self._order_locked(state, request.order):
            # Whatever it knew of the row before: what counts is read under the lock.
            line = sql.lines[request.order]
            yield Step(
                f"{who} locks the row in share mode: epoch {sql.epoch}, order {line or 'unknown'}",
                _with_request(state, request, request._replace(transaction=Transaction(line))),
            )

    def _row_shared(self, state: State) -> bool:
        """Whether a deciding transaction keeps everybody from the shard row who wants it for himself."""
        return self.share_lock and any(request.transaction for request in state.requests)

    def _order_locked(self, state: State, order: int) -> bool:
        """The header of an order that exists is read FOR UPDATE."""
        return any(
            request.order == order and request.transaction and request.transaction.line for request in state.requests
        )

    def _commit_steps(self, state: State, request: Request, transaction: Transaction, who: str) -> Iterator[Step]:
        """The balance is locked and read, the change decided and written, COMMIT. An order that was not there is inserted, and
        the insert fails where it has come meanwhile.
        """
        if self.order_unique and transaction.line is None and state.mysql.lines[request.order] is not None:
            anew = _with_request(state, request, request._replace(transaction=None))
            yield Step(f"{who} finds the order made meanwhile, and begins anew", anew)
            return
        accepted, sql = self._written(state.mysql, request, transaction)
        committed = state._replace(mysql=sql)
        # Everybody hears of the epoch in which this was decided: simpler than gateways are, as in `_known`.
        told = _promised(committed, Ticket(sql.epoch, sql.applied_m, sql.applied_digest))
        yield Step(
            f"{who} commits: {'2xx' if accepted else 'refused'}, available {sql.quantities.available}",
            self._answered(told, request, accepted=accepted),
        )
        if state.faults.total and state.faults.gateway_crashes:
            lost = _unknown(committed, request)
            yield _fault(lost, "gateway_crashes", f"FAULT: {who} commits, and the answer is lost")

    def _written(self, sql: MySQL, request: Request, transaction: Transaction) -> tuple[bool, MySQL]:
        if transaction.line == request.kind:
            return True, sql
        after = moved(sql.quantities, request.kind)
        if transaction.line != MOVES[request.kind].start or min(after) < 0:
            return False, sql
        event = Event(len(sql.ledger) + 1, request.kind, request.order, request.attempt, after)
        lines = _put(sql.lines, request.order, request.kind)
        return True, sql._replace(quantities=after, lines=lines, ledger=(*sql.ledger, event))

    def _is_new(self, space: Space, order: int) -> bool:
        """Whether the filter proves that MySQL does not know an order that Redis does not know."""
        complete = space.scanned == len(space.orders) or not self.filter_complete
        return self.configuration.filters and complete and order not in space.filtered

    def _known(self, state: State, request: Request) -> Iterator[Ticket]:
        """Entries that a gateway knows to be confirmed: heard named, or applied in the row that it read with an order.

        Simpler than the gateways are, who may have missed what others heard: see the page on what a refusal means.
        """
        if state.promised and self.known_named:
            yield state.promised
        if request.lookup and self.known_applied:
            yield Ticket(request.lookup.epoch, request.lookup.applied_m, request.lookup.applied_digest)

    def _speaks_of(self, lookup: Lookup | None, space: Space) -> bool:
        return lookup is None or lookup.epoch == space.epoch or not self.lookup_epoch

    def _decide(self, space: Space, request: Request) -> Decision:
        """The script: load what was looked up, decide, append one entry."""
        lookup = request.lookup
        if lookup and (not space.opened or not self.opened_set):
            space = space._replace(opened=True, quantities=lookup.quantities, seq=lookup.seq)
        if not space.opened:
            return Decision(None)
        line = space.orders[request.order]
        if line is None and (self.lookup or request.kind != "reserve"):
            # Unknown to Redis is not unknown.
            if self._is_new(space, request.order):
                lookup = None
            elif not lookup or (self.lookup_fresh and lookup.applied_m < space.evicted_m):
                return Decision(None)
            if lookup and lookup.line:
                line = Line(lookup.line, 0)
                space = space._replace(orders=_put(space.orders, request.order, line))
        if line and line.kind == request.kind:
            entry = space.entry(line.m)
            if line.m <= space.mark or entry is None:
                return Decision(space, accepted=True)
            return Decision(space, True, Ticket(space.epoch, line.m, entry.digest))
        after = moved(space.quantities, request.kind)
        if (line and line.kind) != MOVES[request.kind].start or min(after) < 0:
            return Decision(space)
        event = Event(space.seq + 1, request.kind, request.order, request.attempt, after)
        digest = chained(space.log[-1].digest if space.log else "", event)
        m = space.last + 1
        return Decision(
            space._replace(
                orders=_put(space.orders, request.order, Line(request.kind, m)),
                quantities=after,
                seq=event.seq,
                log=(*space.log, Entry(event, digest)),
            ),
            True,
            Ticket(space.epoch, m, digest),
        )

    def _decided(self, state: State, request: Request, before: Space, decision: Decision, after: Space) -> State:
        state = _with_space(state, before, after)
        # What is answered rests on the row that was read, and on what the head calls confirmed: that was named.
        marked = after.entry(after.mark)
        for known in self._known(state, request):
            state = _promised(state, known)
        if decision.ticket:
            return _with_request(state, request, request._replace(ticket=decision.ticket))
        if marked:
            state = _promised(state, Ticket(after.epoch, after.mark, marked.digest))
        return self._answered(state, request, accepted=decision.accepted)

    def _waiting_steps(self, state: State, request: Request, ticket: Ticket, who: str) -> Iterator[Step]:
        space = _space(state, ticket.epoch)
        in_log = space is not None and space.holds(ticket.m, ticket.digest)
        in_head = space is not None and in_log and space.mark >= ticket.m
        if in_head or any(_names(leader, ticket) for leader in state.leaders):
            yield Step(f"{who} answers 2xx", self._answered(state, request, accepted=True))
        elif not self.digest_named and _reached(state.remembered[request.gateway], ticket):
            yield Step(f"{who} remembers {ticket.m}: 2xx", self._answered(state, request, accepted=True))
        elif not in_log or not state.mysql.hot or state.mysql.epoch != ticket.epoch:
            sql = state.mysql
            if sql.mode == "db" and sql.epoch > ticket.epoch:
                # It has read this in the row, and asks in no older epoch again.
                state = _promised(state, Ticket(sql.epoch, sql.applied_m, sql.applied_digest))
            yield Step(f"{who} answers unknown", _unknown(state, request))

    def _remember_steps(self, state: State) -> Iterator[Step]:
        for leader in state.leaders:
            number = (leader.epoch, leader.confirmed_m)
            for gateway, known in enumerate(state.remembered):
                if number > known:
                    yield Step(
                        f"gateway {gateway} hears that {leader.confirmed_m} is confirmed",
                        state._replace(remembered=_put(state.remembered, gateway, number)),
                    )

    def _answered(self, state: State, request: Request, *, accepted: bool) -> State:
        state = _without_request(state, request)
        client = state.clients[request.order]
        program = self.configuration.programs[request.order]
        answer = (request.order, request.kind)
        if accepted and answer not in state.answered:
            state = state._replace(answered=tuple(sorted((*state.answered, answer))))
        if accepted and request.ticket is not None:
            state = _promised(state, request.ticket)
        if not client.waits or (program[client.at], client.attempt) != request[1:3]:
            return state  # its client has given this attempt up: nobody hears the answer
        if not accepted and client.at:
            state = state._replace(contradicted=answer)
        at = client.at + 1 if accepted else len(program)
        if not accepted and self.configuration.refusals_bind:
            state = state._replace(refused=(*state.refused, answer))
        return state._replace(clients=_put(state.clients, request.order, Client(at)))

    # --- the leader -----------------------------------------------------------

    def _leader_steps(self, state: State, index: int, leader: Leader) -> Iterator[Step]:
        who = f"leader {index}"
        if leader.wire:
            yield Step(
                f"queue takes and confirms {_text(leader.wire[0])} of {who}",
                _arrived(state, index, leader._replace(wire=leader.wire[1:]), leader.wire[0]),
            )
        if leader.stage != "idle" and not leader.connected:
            yield from self._resign(state, index, leader, f"{who} notices that it is none")
        yield from self._mark(state, index, leader, who)
        match leader.stage:
            case "idle":
                if state.lock is None and self._stands(state):
                    taken = _with_leader(state, index, Leader("locked", connected=True))
                    yield Step(f"{who} takes the lock", taken._replace(lock=index))
            case "locked" | "term":
                yield from self._start(state, index, leader, who)
            case "check":
                yield from self._inspect(state, index, leader, who)
                yield from self._take_switch(state, index, leader, who)
            case "relay":
                yield from self._take_switch(state, index, leader, who)
                yield from self._inspect(state, index, leader, who)
                yield from self._relay(state, index, leader, who)
                yield from self._resend(state, index, leader, who)
                yield from self._tidy(state, leader, who)
            case "fence" | "drain" | "close" | "claimed" | "closing":
                yield from self._take_switch(state, index, leader, who)
                yield from self._close(state, index, leader, who)
            case "db":
                yield from self._lead_db(state, index, leader, who)
            case "open" | "swap" | "unfence":
                yield from self._take_switch(state, index, leader, who)
                yield from self._open(state, index, leader, who)

    def _stands(self, state: State) -> bool:
        """A candidate that does not reach Redis leaves the lock to others, unless there is something to do without Redis."""
        if not state.away:
            return True
        return self.stand_without_redis and (state.mysql.mode == "db" or state.mysql.switch is not None)

    def _start(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        sql = state.mysql
        if leader.stage == "locked" and self.terms:
            if self._row_shared(state):
                return
            term = sql.term + 1
            state = state._replace(mysql=sql._replace(term=term))
            begun = leader._replace(stage="term", term=term)
            if leader.connected:
                sent = self._sent(state, index, begun, Message("TERM", term))
                yield Step(f"{who} raises the term to {term} and sends TERM", sent)
            else:
                yield Step(f"{who} raises the term to {term}", _with_leader(state, index, begun))
        elif self.terms and sql.applied_term > leader.term:
            yield from self._resign(state, index, leader, f"{who} sees a newer term")
        elif not self.terms or sql.applied_term == leader.term:
            stages: dict[Mode, Stage] = {"hot": "check", "opening": "open", "db": "db"}
            begun = leader._replace(
                stage=stages[sql.mode],
                epoch=sql.epoch,
                sent_m=sql.applied_m,
                sent_digest=sql.applied_digest,
                confirmed_m=sql.applied_m,
                confirmed_digest=sql.applied_digest,
            )
            yield Step(
                f"{who} reads the row: {sql.mode}, epoch {sql.epoch}, applied {sql.applied_m}",
                _with_leader(state, index, begun),
            )
        elif leader.connected and not _under_way(state, leader, "TERM"):
            message = Message("TERM", leader.term)
            yield Step(f"{who} sends TERM again", self._sent(state, index, leader, message))

    def _inspect(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        """At the start, after every reconnect and once a second: is Redis still the continuation?"""
        if state.away:
            return
        space = _space(state, leader.epoch)
        if space is None or not self._holds(space, leader.sent_m, leader.sent_digest):
            yield Step(
                f"{who} finds that Redis is not the continuation of {leader.sent_m}",
                _with_leader(state, index, leader._replace(stage="fence")),
            )
            return
        if self._refuses(space, leader):
            yield from self._resign(state, index, leader, f"{who} is refused by a newer term")
            return
        raised = space._replace(term=leader.term, fenced=False)
        if leader.stage == "check" or raised != space:
            leader = leader._replace(stage="relay")
            yield Step(
                f"{who} finds {leader.sent_m} in Redis and relays",
                _with_leader(_with_space(state, space, raised), index, leader),
            )

    def _relay(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        space = _space(state, leader.epoch)
        if not leader.connected or space is None or self._refuses(space, leader):
            return
        entry = space.entry(leader.sent_m + 1)
        if entry is None:
            return
        if self.chain_check and entry.digest != chained(leader.sent_digest, entry.event):
            yield Step(
                f"{who} finds that {leader.sent_m + 1} does not chain",
                _with_leader(state, index, leader._replace(stage="fence")),
            )
            return
        leader = leader._replace(sent_m=leader.sent_m + 1, sent_digest=entry.digest)
        message = Message("ENTRY", leader.term, leader.epoch, leader.sent_m, *entry)
        yield Step(f"{who} sends {_text(message)}", self._sent(state, index, leader, message))

    def _mark(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        """A gateway that missed the naming asks the head, which believes no bare number."""
        del index
        space = _space(state, leader.epoch)
        m = leader.confirmed_m
        if space is None or space.mark >= m or self._refuses(space, leader):
            return
        if space.holds(m, leader.confirmed_digest):
            yield Step(f"{who} marks {m} confirmed", _with_space(state, space, space._replace(mark=m)))

    def _resend(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        sql = state.mysql
        space = _space(state, leader.epoch)
        if (
            space is not None
            and sql.epoch == leader.epoch
            and sql.applied_m < leader.sent_m
            # Asked by the worker; or nothing comes after the hole from which it could see one.
            and (sql.applied_m < sql.wanted_m or not _under_way(state, leader, "ENTRY"))
            and space.holds(sql.applied_m, sql.applied_digest)
            and not _under_way(state, leader, "ENTRY", sql.applied_m + 1)
        ):
            again = leader._replace(
                stage="relay" if leader.stage == "relay" else "drain",
                sent_m=sql.applied_m,
                sent_digest=sql.applied_digest,
            )
            yield Step(f"{who} sends from {sql.applied_m + 1} again", _with_leader(state, index, again))

    def _tidy(self, state: State, leader: Leader, who: str) -> Iterator[Step]:
        """Ended records leave when MySQL has them, and so do entries below the applied one."""
        sql = state.mysql
        space = _space(state, leader.epoch)
        if not sql.hot or sql.epoch != leader.epoch or space is None or self._refuses(space, leader):
            return
        for order, line in enumerate(space.orders if self.configuration.evicts else ()):
            if line and line.kind != "reserve" and line.m <= sql.applied_m:
                left = space._replace(
                    orders=_put(space.orders, order, None),
                    evicted_m=max(space.evicted_m, line.m),
                    filtered=space.filtered | ({order} if self.filter_evicted else set()),
                )
                yield Step(f"{who} evicts order {order}", _with_space(state, space, left))
        if self.configuration.filters and space.scanned < len(space.orders):
            order = space.scanned
            known = {order} if sql.lines[order] else set[int]()
            scanned = space._replace(filtered=space.filtered | known, scanned=order + 1)
            yield Step(f"{who} looks in MySQL for order {order}", _with_space(state, space, scanned))
        # Never above the mark: a replay of an entry that is gone could not say what it waits for.
        trimmed = min(sql.applied_m - 1, space.mark)
        if self.configuration.trims and trimmed > space.trimmed:
            kept = space._replace(log=space.log[trimmed - space.trimmed :], trimmed=trimmed)
            yield Step(f"{who} trims up to {trimmed}", _with_space(state, space, kept))

    def _close(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        sql = state.mysql
        space = _space(state, leader.epoch)
        match leader.stage:
            case "fence" if state.away:
                if leader.switch:
                    unfenced = leader._replace(stage="drain")
                    yield Step(f"{who} cannot fence: Redis is away", _with_leader(state, index, unfenced))
            case "fence":
                if space is not None and self._refuses(space, leader):
                    yield from self._resign(state, index, leader, f"{who} is refused by a newer term")
                    return
                if space is not None:
                    state = _with_space(state, space, space._replace(fenced=True, term=leader.term))
                yield Step(
                    f"{who} fences epoch {leader.epoch}",
                    _with_leader(state, index, leader._replace(stage="drain")),
                )
            case "drain":
                if (
                    space is not None
                    and self._holds(space, leader.sent_m, leader.sent_digest)
                    and space.last > leader.sent_m
                ):
                    yield from self._relay(state, index, leader, who)
                elif not leader.wire:
                    yield Step(
                        f"{who} has relayed and heard confirmed what there is",
                        _with_leader(state, index, leader._replace(stage="close")),
                    )
            case "close" if not self.close_queued:
                if sql.hot and sql.epoch == leader.epoch:
                    row = self._closed(sql, leader.switch)
                    begun = _led(leader, "db" if leader.switch else "open", row.epoch)
                    state = state._replace(mysql=row)
                    yield Step(f"{who} sets the row to {row.mode}", _with_leader(state, index, begun))
            case "close" if leader.switch and self.claim_close:
                if sql.switch and sql.switch.number == leader.switch and not self._row_shared(state):
                    state = state._replace(mysql=sql._replace(switch=sql.switch._replace(claimed=True)))
                    claimed = leader._replace(stage="claimed")
                    yield Step(f"{who} records that it closes", _with_leader(state, index, claimed))
            case "close" | "claimed":
                if leader.connected:
                    message = Message("CLOSE", leader.term, leader.epoch, leader.sent_m, switch=leader.switch)
                    leader = leader._replace(stage="closing")
                    sent = self._sent(state, index, leader, message)
                    yield Step(f"{who} sends {_text(message)}", sent)
            case _:
                yield from self._closing(state, index, leader, who)

    def _closing(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        sql = state.mysql
        if sql.mode == "db":
            begun = _led(leader, "db", sql.epoch)
            yield Step(f"{who} sees that MySQL decides, epoch {sql.epoch}", _with_leader(state, index, begun))
        elif sql.epoch != leader.epoch:
            yield from self._resign(state, index, leader, f"{who} sees a newer epoch")
        elif not sql.hot:
            leader = leader._replace(stage="open", switch=0)
            yield Step(f"{who} sees the epoch closed", _with_leader(state, index, leader))
        elif not _under_way(state, leader, "CLOSE"):
            leader = leader._replace(stage="close")
            yield Step(f"{who} misses its CLOSE", _with_leader(state, index, leader))
        else:
            yield from self._resend(state, index, leader, who)

    def _open(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        sql = state.mysql
        if state.away and leader.stage in ("open", "swap"):
            yield from self._back_to_db(state, index, leader, who)
        match leader.stage:
            case "open" | "unfence" if state.away:
                return
            case "open":
                drawn = (max(leader.epoch, state.redis.register) if self.epoch_per_attempt else leader.epoch) + 1
                leader = leader._replace(stage="swap", drawn=drawn)
                state = state._replace(redis=self._head_created(state.redis, drawn, leader.term))
                yield Step(
                    f"{who} creates the head of epoch {drawn}, fenced",
                    _with_leader(state, index, leader),
                )
            case "swap":
                if not self._own_row(sql, leader, "opening"):
                    yield from self._resign(state, index, leader, f"{who} finds the row changed")
                    return
                row = sql._replace(
                    mode="hot", epoch=leader.drawn, applied_m=0, applied_digest="", wanted_m=0, closed_for=0
                )
                if row.switch and row.switch.to == "hot" and self.done_with_hot:
                    row = row._replace(switch=None)
                opened = _led(leader, "unfence", leader.drawn)
                yield Step(
                    f"{who} sets the row hot in epoch {leader.drawn}",
                    _with_leader(state._replace(mysql=row), index, opened),
                )
            case _:
                space = _space(state, leader.epoch)
                if space is None:
                    leader = leader._replace(stage="fence")
                    yield Step(f"{who} finds no head", _with_leader(state, index, leader))
                elif self._refuses(space, leader):
                    yield from self._resign(state, index, leader, f"{who} is refused by a newer term")
                else:
                    if sql.switch and sql.switch.to == "hot" and sql.epoch == leader.epoch:
                        # Only without DONE_WITH_HOT: the switch ends with its last step.
                        state = state._replace(mysql=sql._replace(switch=None))
                    free = space._replace(fenced=False, term=leader.term)
                    yield Step(
                        f"{who} unfences epoch {leader.epoch}",
                        _with_leader(_with_space(state, space, free), index, leader._replace(stage="relay")),
                    )

    # --- where MySQL decides, and the ways there and back ----------------------

    def _take_switch(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        """Until it has recorded that CLOSE goes, the leader follows what the row says: to db, or to db no more."""
        sql = state.mysql
        if leader.stage in ("claimed", "closing") or not sql.hot or sql.epoch != leader.epoch:
            return
        running = sql.switch.number if sql.switch and sql.switch.to == "db" else 0
        if running == leader.switch:
            return
        if not running and not self.claim_close and leader.stage == "close":
            return  # has read the row before, and does not look again
        if running:
            stage: Stage = "fence" if leader.stage in ("check", "relay", "unfence") else leader.stage
            label = f"{who} begins switch {running} to db"
        else:
            stage, label = "check", f"{who} sees that switch {leader.switch} was aborted"
        yield Step(label, _with_leader(state, index, leader._replace(stage=stage, switch=running)))

    def _lead_db(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        sql = state.mysql
        if not self._own_row(sql, leader, "db"):
            yield from self._resign(state, index, leader, f"{who} finds the row changed")
            return
        unfenced = [space for space in state.redis.spaces if not space.fenced and not state.away]
        for space in unfenced:
            fenced = _with_space(state, space, space._replace(fenced=True, term=leader.term))
            yield Step(f"{who} fences epoch {space.epoch}, which has come back", fenced)
        if sql.switch is None or unfenced:
            return
        if sql.switch.to == "db":
            if not self._row_shared(state):
                yield Step(f"{who} finishes switch {sql.switch.number}", _without_switch(state))
        elif not state.away and not (self.exclusive_open and self._row_shared(state)):
            begun = _led(leader, "open", sql.epoch)
            state = state._replace(mysql=sql._replace(mode="opening"))
            yield Step(f"{who} locks the row and sets it to opening", _with_leader(state, index, begun))

    def _back_to_db(self, state: State, index: int, leader: Leader, who: str) -> Iterator[Step]:
        """Nobody decides and everything is applied: without Redis, MySQL can begin an epoch of its own at once."""
        sql = state.mysql
        if self.opening_to_db and sql.switch and self._own_row(sql, leader, "opening"):
            row = self._in_db(sql)._replace(switch=None)
            begun = _led(leader, "db", row.epoch)
            state = state._replace(mysql=row)
            yield Step(f"{who} lets MySQL decide: Redis is away", _with_leader(state, index, begun))

    def _own_row(self, sql: MySQL, leader: Leader, mode: Mode) -> bool:
        """What every compare-and-set of a leader on the row compares."""
        return sql.mode == mode and sql.epoch == leader.epoch and (not self.terms or sql.term == leader.term)

    def _closed(self, sql: MySQL, switch: int) -> MySQL:
        row = self._in_db(sql) if switch else sql._replace(mode="opening")
        return row._replace(closed_for=switch)

    def _in_db(self, sql: MySQL) -> MySQL:
        if not self.db_epoch:
            return sql._replace(mode="db")
        return sql._replace(mode="db", epoch=sql.epoch + 1, applied_m=0, applied_digest="", wanted_m=0)

    def _head_created(self, redis: Redis, epoch: int, term: int) -> Redis:
        if not self.epoch_in_names and redis.spaces:
            # One set of names: head and log begin anew, the million keys are still there.
            head = redis.spaces[0]._replace(fenced=True, term=term, epoch=epoch, mark=0, evicted_m=0, trimmed=0, log=())
            return Redis(epoch, (head,))
        orders = (None,) * len(self.configuration.programs)
        known = [space.epoch for space in redis.spaces]
        if epoch in known:  # only without EPOCH_PER_ATTEMPT: the head begins anew, keys and orders are still there
            at = known.index(epoch)
            head = redis.spaces[at]._replace(fenced=True, term=term, mark=0, evicted_m=0, trimmed=0, log=())
            return Redis(max(epoch, redis.register), _put(redis.spaces, at, head))
        return Redis(max(epoch, redis.register), (*redis.spaces, Space(True, term, epoch, orders)))

    def _holds(self, space: Space, m: int, digest: str) -> bool:
        return not self.chain_check or space.holds(m, digest)

    def _refuses(self, space: Space, leader: Leader) -> bool:
        return self.terms and space.term > leader.term

    def _resign(self, state: State, index: int, leader: Leader, label: str) -> Iterator[Step]:
        for survivors, left in _disconnected(state, index, leader):
            yield Step(f"{label}{survivors}", _with_leader(left, index, Leader()))

    def _sent(self, state: State, index: int, leader: Leader, message: Message) -> State:
        faults = state.faults
        if leader.wire or (faults.total and (faults.leader_crashes or faults.leader_pauses)):
            return _with_leader(state, index, leader._replace(wire=(*leader.wire, message)))
        # Where no connection can die any more, time on the wire is time before sending.
        return _arrived(state, index, leader, message)

    # --- the worker -----------------------------------------------------------

    def _worker_steps(self, state: State) -> Iterator[Step]:
        if self._row_shared(state):
            return
        for position, message in enumerate(state.queue):
            sql = self.applied(state.mysql, message)
            if sql is not None:
                yield Step(
                    f"worker takes {_text(message)}: applied {sql.applied_m}",
                    state._replace(mysql=sql, queue=_cut(state.queue, position)),
                )
                break
            # Held behind a gap: it stays unacknowledged, the worker looks further.
            wanted = state.mysql.applied_m + 1
            if state.mysql.wanted_m != wanted:
                sql = state.mysql._replace(wanted_m=wanted)
                yield Step(f"worker wants {wanted}", state._replace(mysql=sql))
                break
        message = state.delivered_twice
        if message is not None:
            sql = self.applied(state.mysql, message) or state.mysql
            yield Step(
                f"other worker takes {_text(message)}: applied {sql.applied_m}",
                state._replace(mysql=sql, delivered_twice=None),
            )

    def applied(self, sql: MySQL, message: Message) -> MySQL | None:
        """The transaction of the worker for one message; None if it must be held."""
        if self.terms and message.term < sql.applied_term:
            return sql
        if message.what == "TERM":
            return sql._replace(applied_term=message.term)
        if message.epoch < sql.epoch or (message.epoch == sql.epoch and not sql.hot):
            return sql  # stale: nobody was told yes
        if message.epoch > sql.epoch:
            return sql._replace(alarm="a message of an epoch that the row does not know")
        if message.what == "CLOSE":
            return self._closed(sql, message.switch) if sql.applied_m >= message.m else None
        return self._entry_applied(sql, message)

    def _entry_applied(self, sql: MySQL, message: Message) -> MySQL | None:
        event = message.event
        assert event is not None, "an entry has an event"
        if message.m <= sql.applied_m:
            forked = message.m == sql.applied_m and message.digest != sql.applied_digest
            return sql._replace(alarm="fork") if forked and self.chain_check else sql
        if message.m > sql.applied_m + 1 and self.gap_held:
            return None
        chains = (
            message.m > sql.applied_m + 1  # skipped to, where gaps are not held: nothing to compare
            or message.digest == chained(sql.applied_digest, event)
        )
        if self.chain_check and not chains:
            return sql._replace(alarm="fork")
        return sql._replace(
            quantities=moved(sql.quantities, event.kind),
            lines=_put(sql.lines, event.order, event.kind),
            applied_m=message.m,
            applied_digest=message.digest,
            ledger=(*sql.ledger, event),
            alarm=sql.alarm or _complaint(sql, event),
        )

    def drained(self, sql: MySQL, queue: tuple[Message, ...]) -> MySQL:
        """What MySQL will be when the worker has taken all that is in the queue now."""
        known = self._drained.get((sql, queue))
        if known is None:
            known, left = sql, queue
            position = 0
            while position < len(left):
                after = self.applied(known, left[position])
                if after is None:
                    position += 1
                else:
                    known, left, position = after, _cut(left, position), 0
            self._drained[sql, queue] = known
        return known

    # --- what goes wrong ------------------------------------------------------

    def _late_steps(self, state: State) -> Iterator[Step]:
        for index, wire in enumerate(state.late):
            rest = _put(state.late, index, wire[1:]) if wire[1:] else _cut(state.late, index)
            yield Step(
                f"queue takes {_text(wire[0])}, late, from a dead connection",
                state._replace(queue=(*state.queue, wire[0]), late=rest),
            )

    def _redis_returns(self, state: State) -> Iterator[Step]:
        """What waits for Redis may count on its return; a shard in which MySQL decides, or shall, may not."""
        if state.away:
            counted_on = state.mysql.mode != "db" and state.mysql.switch is None
            yield Step("Redis answers again", state._replace(away=False), fault=not counted_on)

    def _fault_steps(self, state: State) -> Iterator[Step]:
        yield from self._redis_faults(state)
        yield from self._leader_faults(state)
        yield from self._gateway_faults(state)
        yield from self._queue_faults(state)
        yield from self._switch_faults(state)

    def _redis_faults(self, state: State) -> Iterator[Step]:
        if state.faults.reverts:
            if state.replica is None:
                yield Step("a replica falls behind here", state._replace(replica=state.redis))
            elif state.replica != state.redis:
                back = state._replace(redis=state.replica, replica=None)
                yield _fault(back, "reverts", "FAULT: Redis has the replica's data")
        if state.faults.empties and state.redis.spaces:
            empty = state._replace(redis=Redis(0, ()), replica=None)
            yield _fault(empty, "empties", "FAULT: Redis is empty")
        if state.faults.outages and not state.away:
            yield _fault(state._replace(away=True), "outages", "FAULT: Redis does not answer")

    def _leader_faults(self, state: State) -> Iterator[Step]:
        for index, leader in enumerate(state.leaders):
            if leader.stage == "idle":
                continue
            for survivors, left in _disconnected(state, index, leader):
                if state.faults.leader_crashes:
                    label = f"FAULT: leader {index} dies{survivors}"
                    yield _fault(_with_leader(left, index, Leader()), "leader_crashes", label)
                if state.faults.leader_pauses and leader.connected:
                    label = f"FAULT: leader {index} loses the lock, unaware{survivors}"
                    yield _fault(left, "leader_pauses", label)
            if state.faults.rebuilds and leader.stage == "relay":
                asked = _with_leader(state, index, leader._replace(stage="fence"))
                yield _fault(asked, "rebuilds", f"leader {index} is asked for a rebuild")

    def _gateway_faults(self, state: State) -> Iterator[Step]:
        if state.faults.gateway_crashes:
            for gateway in {request.gateway for request in state.requests}:
                left = state
                for request in state.requests:
                    if request.gateway == gateway:
                        left = _unknown(left, request)
                if left.remembered:
                    left = left._replace(remembered=_put(left.remembered, gateway, (0, 0)))
                yield _fault(left, "gateway_crashes", f"FAULT: gateway {gateway} dies")
        if state.faults.repeats:
            for order, client in enumerate(state.clients):
                if client.waits:
                    again = client._replace(attempt=client.attempt + 1, waits=False)
                    left = state._replace(clients=_put(state.clients, order, again))
                    yield _fault(left, "repeats", f"FAULT: client of order {order} gives up waiting")

    def _queue_faults(self, state: State) -> Iterator[Step]:
        if state.faults.overlaps and state.queue and state.delivered_twice is None:
            message = state.queue[0]
            twice = state._replace(delivered_twice=message)
            yield _fault(twice, "overlaps", f"FAULT: {_text(message)} goes to two workers")
        if state.faults.purges:
            for position, message in enumerate(state.queue):
                purged = state._replace(queue=_cut(state.queue, position), purged=True)
                yield _fault(purged, "purges", f"FAULT: {_text(message)} is purged from the queue")

    def _switch_faults(self, state: State) -> Iterator[Step]:
        """What operators ask for: no faults, but as rare."""
        sql = state.mysql
        if self._row_shared(state):
            return
        if state.faults.switches and sql.switch is None:
            switch = Switch(sql.switches + 1, "hot" if sql.mode == "db" else "db")
            asked = state._replace(mysql=sql._replace(switch=switch, switches=switch.number))
            yield _fault(asked, "switches", f"switch {switch.number} to {switch.to} is asked for")
        if state.faults.aborts and sql.switch and _can_be_aborted(sql.mode, sql.switch):
            aborted = sql.aborted | {sql.switch.number}
            left = state._replace(mysql=sql._replace(switch=None, aborted=aborted))
            yield _fault(left, "aborts", f"switch {sql.switch.number} is aborted")


# --- small steps on values ----------------------------------------------------


def _put(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    return (*values[:index], value, *values[index + 1 :])


def _cut(values: tuple[T, ...], index: int) -> tuple[T, ...]:
    return (*values[:index], *values[index + 1 :])


def _space(state: State, epoch: int) -> Space | None:
    """What Redis answers about an epoch: nothing of one that it does not have, or while it is away."""
    if state.away:
        return None
    for space in state.redis.spaces:
        if space.epoch == epoch:
            return space
    return None


def _with_space(state: State, before: Space, after: Space) -> State:
    spaces = _put(state.redis.spaces, state.redis.spaces.index(before), after)
    return state._replace(redis=state.redis._replace(spaces=spaces))


def _with_leader(state: State, index: int, leader: Leader) -> State:
    return state._replace(leaders=_put(state.leaders, index, leader))


def _led(leader: Leader, stage: Stage, epoch: int) -> Leader:
    """The same leader in another epoch: what it knew of the old one's log is nothing to the new one."""
    return Leader(stage, leader.connected, leader.term, epoch, wire=leader.wire)


def _can_be_aborted(mode: Mode, switch: Switch) -> bool:
    """To db until CLOSE is recorded, to hot until the row is set to opening."""
    return mode != "db" and not switch.claimed if switch.to == "db" else mode == "db"


def _without_switch(state: State) -> State:
    return state._replace(mysql=state.mysql._replace(switch=None))


def _request_key(request: Request) -> tuple[int, str, int]:
    return request.order, request.kind, request.attempt


def _with_request(state: State, before: Request, after: Request) -> State:
    return state._replace(requests=_put(state.requests, state.requests.index(before), after))


def _without_request(state: State, request: Request) -> State:
    return state._replace(requests=_cut(state.requests, state.requests.index(request)))


def _unknown(state: State, request: Request) -> State:
    """The answer is 503 `unknown`, or none: the client repeats with the same id."""
    state = _without_request(state, request)
    client = state.clients[request.order]
    if not client.waits or client.attempt != request.attempt:
        return state
    again = Client(client.at, client.attempt + 1)
    return state._replace(clients=_put(state.clients, request.order, again))


def _promised(state: State, known: Ticket) -> State:
    return state if state.promised and state.promised >= known else state._replace(promised=known)


def _has_forgotten(space: Space, known: Ticket) -> bool:
    """Whether this Redis came back without an entry that is known to be confirmed."""
    if space.epoch != known.epoch:
        return space.epoch < known.epoch
    return known.m > space.mark and not space.holds(known.m, known.digest)


def _names(leader: Leader, ticket: Ticket) -> bool:
    """The leader has named every entry up to the confirmed one, with its digest."""
    return (
        leader.epoch == ticket.epoch
        and leader.confirmed_m >= ticket.m
        and leader.confirmed_digest.startswith(ticket.digest)
    )


def _reached(remembered: tuple[int, int], ticket: Ticket) -> bool:
    return remembered[0] == ticket.epoch and remembered[1] >= ticket.m


def _arrived(state: State, index: int, leader: Leader, message: Message) -> State:
    """A confirm counts from the moment the queue has the message: hearing it later, or never,
    is a leader that makes its next step later, or never.
    """
    if message.what == "ENTRY" and message.m > leader.confirmed_m:
        leader = leader._replace(confirmed_m=message.m, confirmed_digest=message.digest)
    state = state._replace(queue=(*state.queue, message))
    return _with_leader(state, index, leader)


def _under_way(state: State, leader: Leader, what: str, m: int | None = None) -> bool:
    """Stands for patience: nobody sends again what will still arrive."""
    return any(
        message.what == what and message.term == leader.term and (m is None or message.m == m)
        for message in (*state.queue, *leader.wire)
    )


def _disconnected(state: State, index: int, leader: Leader) -> Iterator[tuple[str, State]]:
    """The connection dies and the lock is free; of what is on the wire, the first may still come."""
    if not leader.connected:
        yield "", state
        return
    for arriving in range(len(leader.wire) + 1):
        late = (*state.late, leader.wire[:arriving]) if arriving else state.late
        gone = leader._replace(connected=False, wire=())
        left = _with_leader(state._replace(lock=None, late=late), index, gone)
        yield f", {arriving} of {len(leader.wire)} messages under way" if leader.wire else "", left


def _complaint(sql: MySQL, event: Event) -> str:
    """What makes an event impossible to apply: an operator would be called."""
    if event.seq != len(sql.ledger) + 1:
        return f"ledger is not dense: {len(sql.ledger)} rows, then seq {event.seq}"
    if sql.lines[event.order] != MOVES[event.kind].start:
        return f"illegal path of order {event.order}: {sql.lines[event.order]} to {event.kind}"
    after = moved(sql.quantities, event.kind)
    if min(after) < 0:
        return "a quantity falls below zero"
    return "" if after == event.after else "the after-image differs"


def _fault(state: State, kind: str, label: str) -> Step:
    left: int = getattr(state.faults, kind)
    faults = state.faults._replace(**{kind: left - 1, "total": state.faults.total - 1})
    return Step(label, state._replace(faults=faults), fault=True)


def _attempt(request: Request) -> str:
    return chr(97 + request.attempt)


def _outcome(decision: Decision) -> str:
    if decision.ticket:
        return f"entry {decision.ticket.m}, {decision.ticket.digest}"
    return "2xx, known and confirmed" if decision.accepted else "refused"


def _text(message: Message) -> str:
    match message.what:
        case "TERM":
            return f"TERM({message.term})"
        case "CLOSE":
            then = "db" if message.switch else "opening"
            return f"CLOSE(epoch {message.epoch} after {message.m}, then {then}, term {message.term})"
        case "ENTRY":
            return f"{message.epoch}:{message.m} {message.digest} (term {message.term})"
