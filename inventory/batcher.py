"""Gathers the operations of many requests into few script calls, and answers each request when its own are done.

One call is in flight; what arrives meanwhile, and until its entry is named, makes the next one. Under load two halves take
turns: a call takes half of all that is open, so that Redis decides the one half while this process answers and reads the
other. What needs MySQL first waits in a line of its own, so that it never stands before what Redis can decide alone.
Between requests only this order counts: who was answered comes before who asked after that. Within a request operations
keep their order.

A request has neither a task nor, unless somebody awaits it, a future: it is told. An answer that promises something waits
until the leader has named the call's entry (`ack=broker`): one waiter per call, for all its requests.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Literal, NamedTuple, cast

from inventory.confirmations import Confirmations
from inventory.hot_path import Called, Decision, Failure, FailureCode, Pending, Store
from inventory.moves import REQUEST_MOVES, Move
from inventory.operations import Operation, Result
from inventory.outcomes import CallStatus, Outcome
from inventory.shard_path import ShardPath
from kernel import failpoints, limits
from kernel.clock import SYSTEM_CLOCK, Clock
from kernel.metrics import Metrics
from kernel.settings import Settings
from kernel.tallies import Timing

LOOK_UPS_IN_FLIGHT: Final = 2
"""Look-ups that run side by side: a slow one (a cold key, a large order) does not hold up the next tick's."""
GATHER_S: Final = 0.01
"""How long a batch may wait for the one before it to be answered. A call, its entry and its naming cost the same for one
operation as for many: under load fewer and larger ones are what leaves the machine free."""
SHARE_MIN: Final = 8
"""So many operations are worth a call of their own while those before them wait for their naming."""
SWEEP_S: Final = 0.05
"""How far past its deadline a request may be answered."""

Durability = Literal["broker", "redis", "mysql"]
"""What keeps an answer: the queue on disk, Redis alone, or MySQL, which decided it itself."""


class Answer(NamedTuple):
    """What a request came to: a decision for each operation, in order.

    `epoch` and `now_ms` (the deciding store's clock, UTC epoch ms) are those of its last call, 0 where there was none.
    """

    results: list[Decision]
    epoch: int
    durability: Durability
    now_ms: int


_NO_STORE: Final[frozenset[Store]] = frozenset()
_STORES: Final[dict[Store, frozenset[Store]]] = {"redis": frozenset({"redis"}), "mysql": frozenset({"mysql"})}

Tell = Callable[[Answer], None]
"""Hears a request's answer, exactly once. Runs amid the answers of others: must be quick and must not raise."""


class _Request(Pending):
    """A request on its way: queued, in preparation, in a call, or waiting for its entries to be named."""

    __slots__ = (
        "begun",
        "calling",
        "counted",
        "deadline",
        "done",
        "epoch",
        "lines",
        "now_ms",
        "stores",
        "tell",
        "unnamed",
    )

    def __init__(self, ops: Sequence[Operation], tell: Tell, begun: float, deadline: float, *, looks_up: bool) -> None:
        super().__init__(ops, looks_up=looks_up)
        self.tell = tell
        self.done = False
        """Answered, or given up by its caller."""
        self.begun = begun
        self.deadline = deadline
        self.lines = sum([len(op.lines) or 1 for op in ops])
        self.calling: Sequence[int] = ()
        """Positions of the operations that the call in flight is about."""
        self.unnamed: list[int] = []
        """Positions of the operations whose decision waits for its entry to be named."""
        self.epoch = 0
        self.now_ms = 0
        self.stores: frozenset[Store] = _NO_STORE
        """Who decided anything of it."""
        self.counted: Sequence[str] = ()
        """The keys at which it is counted among those that MySQL is to decide."""


class _Line:
    """Requests that wait their turn, how many operations and lines they have, and how many of each leave together."""

    def __init__(self, operations_max: int, lines_max: int) -> None:
        self._operations_max = operations_max
        self._lines_max = lines_max
        self._requests: deque[_Request] = deque()
        self.operations = 0
        self._lines = 0
        self._filled = asyncio.Event()

    def put(self, request: _Request) -> None:
        self._requests.append(request)
        self.operations += len(request.ops)
        self._lines += request.lines
        self._filled.set()

    def put_back(self, requests: Sequence[_Request]) -> None:
        """Put requests before all others."""
        self._requests.extendleft(reversed(requests))
        self.operations += sum(len(request.ops) for request in requests)
        self._lines += sum(request.lines for request in requests)
        if requests:
            self._filled.set()

    async def filled(self) -> None:
        """Wait until somebody waits here."""
        await self._filled.wait()

    @property
    def full(self) -> bool:
        """Whether waiting longer would not make what leaves next larger."""
        return self.operations >= self._operations_max or self._lines >= self._lines_max

    def take(self, operations_max: int) -> list[_Request]:
        """Take as many requests as fit and have no more operations than this; one that alone does not fit comes alone."""
        operations_max = min(operations_max, self._operations_max)
        taken: list[_Request] = []
        operations = lines = 0
        requests = self._requests
        while requests:
            request = requests[0]
            count = len(request.undecided)
            if taken and (operations + count > operations_max or lines + request.lines > self._lines_max):
                break
            requests.popleft()
            self.operations -= len(request.ops)
            self._lines -= request.lines
            # Cancelled by its caller, or past its deadline: nobody asks for it any more.
            if not request.done:
                taken.append(request)
                operations += count
                lines += request.lines
        if not requests:
            self._filled.clear()
        return taken


class Batcher:
    """One shard's operations in this process. `run` must be running.

    Everything has a bound: a call's operations and lines, the operations that wait for a call or a look-up, all that is
    not answered yet, and a request's time from submit to answer (`settings.answer_deadline_ms`).
    """

    def __init__(
        self,
        settings: Settings,
        path: ShardPath,
        confirmations: Confirmations,
        metrics: Metrics,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._path = path
        self._confirmations = confirmations
        self._clock = clock
        self._durability: Durability = settings.ack
        self._deadline_s = settings.answer_deadline_ms / 1000
        self._ready = _Line(limits.BATCH_OPERATIONS_MAX, limits.BATCH_LINES_MAX)
        self._lacking = _Line(limits.LOAD_ORDERS_MAX, limits.LOAD_KEYS_MAX)
        self._open: dict[_Request, None] = {}
        """Requests without an answer, in the order of their deadlines."""
        self._open_operations = 0
        self._open_by_key: Counter[str] = Counter()
        """Operations without an answer that MySQL is to decide, by the keys they name."""
        self._looking_up = 0
        """Look-ups that run."""
        self._unnamed_calls = 0
        """Calls whose requests wait for the naming of their entry."""
        self._progress = asyncio.Event()
        """Set whenever a batch may be allowed to begin."""
        self._untaken: deque[tuple[Sequence[_Request], Called]] = deque()
        """Replies that nobody has been told of yet."""
        self._draining = False
        self._emptied = asyncio.Event()
        self._batch_operations = metrics.batch_operations
        self._batch_seconds = metrics.batch_seconds
        self._naming_seconds = metrics.naming_seconds
        metrics.open_operations.set_function(lambda: self._open_operations)
        metrics.queued_operations.labels("call").set_function(lambda: self._ready.operations)
        metrics.queued_operations.labels("look_up").set_function(lambda: self._lacking.operations)
        self._counters = _Counters(metrics)

    # --- a request ----------------------------------------------------------------------------------------------------

    async def submit(self, ops: Sequence[Operation]) -> Answer:
        """Have a request's operations decided, each by itself, in their order; returns when all are.

        Raises ValueError for operations that no caller may send (the script would refuse the whole call). A store's
        trouble is a `Failure` in the answer. May be cancelled at any time: what was not sent is not sent, what was is
        decided, and learned by asking again with the same id.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()

        def tell(answer: Answer) -> None:
            if not future.done():
                future.set_result(answer)

        request = self._put(ops, tell)
        try:
            return await future
        finally:
            if request is not None and not request.done:
                self._close(request)

    def put(self, ops: Sequence[Operation], tell: Tell) -> None:
        """As `submit`, for who does not wait: `tell` hears the answer, perhaps before this returns. Raises ValueError."""
        self._put(ops, tell)

    def _put(self, ops: Sequence[Operation], tell: Tell) -> _Request | None:
        for op in ops:
            _check(op)
        if self._draining:
            tell(self._refused(ops, "UNAVAILABLE", "this gateway is shutting down"))
            return None
        now = self._clock.monotonic()
        request = _Request(ops, tell, now, now + self._deadline_s, looks_up=self._path.looks_up)
        line = self._lacking if request.needs else self._ready
        if (
            line.operations + len(ops) > limits.BATCH_QUEUE_OPERATIONS_MAX
            or self._open_operations + len(ops) > limits.BATCH_OPEN_OPERATIONS_MAX
        ):
            answer = self._refused(ops, "OVERLOADED", "more operations wait here than can be decided in time")
            self._counters.count_outcomes(ops, answer.results)
            tell(answer)
            return None
        if self._path.decided_by_mysql:
            if crowded := self._crowded(ops):
                answer = self._refused(ops, "TOO_MANY_REQUESTS", crowded)
                self._counters.count_outcomes(ops, answer.results)
                tell(answer)
                return None
            request.counted = [line.inventory_key for op in ops for line in op.lines]
            self._open_by_key.update(request.counted)
        self._open[request] = None
        self._open_operations += len(ops)
        line.put(request)
        if line.full or (line is self._ready and line.operations >= self._share):
            self._progress.set()
        return request

    def _crowded(self, ops: Sequence[Operation]) -> str:
        """Why MySQL cannot be asked for these too, or the empty string. One hot key leaves room for all the others."""
        if self._open_operations + len(ops) > limits.DB_OPEN_OPERATIONS_MAX:
            return "MySQL decides now, and more waits here than it can decide in time"
        asked = Counter(line.inventory_key for op in ops for line in op.lines)
        for key, count in asked.items():
            if self._open_by_key[key] + count > limits.DB_KEY_OPEN_OPERATIONS_MAX:
                return f"MySQL decides now, and too much waits for {key!r}"
        return ""

    def _refused(self, ops: Sequence[Operation], code: FailureCode, why: str) -> Answer:
        return Answer([Failure(code, "not_executed", why)] * len(ops), 0, self._durability, 0)

    def _answer_if_done(self, request: _Request) -> None:
        if request.undecided or request.unnamed or request.done:
            return
        # All of them are there now.
        decisions = cast("list[Decision]", request.decisions)
        self._close(request)
        self._counters.count(request.ops, decisions, self._clock.monotonic() - request.begun)
        durability: Durability = "mysql" if request.stores == _STORES["mysql"] else self._durability
        request.tell(Answer(decisions, request.epoch, durability, request.now_ms))

    def _close(self, request: _Request) -> None:
        request.done = True
        del self._open[request]
        self._open_operations -= len(request.ops)
        for key in request.counted:
            self._open_by_key[key] -= 1
            if not self._open_by_key[key]:
                del self._open_by_key[key]
        if not self._open:
            self._emptied.set()

    # --- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until cancelled. Requests that are open then are answered with what is known of them."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._call_for_ever(tasks))
                for _ in range(LOOK_UPS_IN_FLIGHT):
                    tasks.create_task(self._look_up_for_ever())
                tasks.create_task(self._sweep_for_ever())
        finally:
            self._draining = True
            try:
                while self._untaken:
                    self._take_called(*self._untaken.popleft())
            finally:
                for request in list(self._open):
                    self._give_up(request, "this gateway is shutting down")
                self._counters.flush()

    async def drain(self) -> None:
        """Take nothing new, and return when everything is answered: at the latest after the last deadline."""
        self._draining = True
        while self._open:
            self._emptied.clear()
            await self._emptied.wait()

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_S)
            self._counters.flush()
            now = self._clock.monotonic()
            late: list[_Request] = []
            for request in self._open:
                if request.deadline > now:
                    break
                late.append(request)
            for request in late:
                self._give_up(request, "no answer within the deadline")

    def _give_up(self, request: _Request, why: str) -> None:
        """Answer with what is known: sent and not heard of, or decided and not named, is `unknown`."""
        if request.done:
            return
        calling = set(request.calling)
        for position in request.undecided:
            outcome = "unknown" if position in calling else "not_executed"
            request.decisions[position] = Failure("UNAVAILABLE", outcome, why)
        for position in request.unnamed:
            request.decisions[position] = Failure("UNAVAILABLE", "unknown", f"{why}: its entry is not confirmed")
        request.undecided, request.unnamed = [], []
        self._answer_if_done(request)

    async def _gather(self, line: _Line, may_grow: Callable[[], bool]) -> None:
        """Wait for a first request, then let the batch grow while it may, for `GATHER_S` at most."""
        await line.filled()
        if line.full or not may_grow():
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_S):
                while may_grow() and not line.full:
                    self._progress.clear()
                    await self._progress.wait()

    def _look_up_may_grow(self) -> bool:
        return self._looking_up > 0 or self._unnamed_calls > 0

    def _call_may_grow(self) -> bool:
        under_way = self._unnamed_calls > 0 or len(self._untaken) > 0
        return under_way and self._ready.operations < self._share

    @property
    def _share(self) -> int:
        """How many operations a call takes: half of all that are open and need no look-up first. If it took all, everybody
        would move in step, and Redis and this process wait for each other. MySQL's commit costs more than that: it gets all.
        """
        if self._path.decided_by_mysql:
            return limits.BATCH_OPERATIONS_MAX
        return max(SHARE_MIN, (self._open_operations - self._lacking.operations + 1) // 2)

    # --- what MySQL is asked for ----------------------------------------------------------------------------------------

    async def _look_up_for_ever(self) -> None:
        while True:
            await self._gather(self._lacking, self._look_up_may_grow)
            requests = self._lacking.take(limits.LOAD_ORDERS_MAX)
            if requests:
                self._looking_up += 1
                await self._look_up(requests)
                self._looking_up -= 1
                self._progress.set()

    async def _look_up(self, requests: Sequence[_Request]) -> None:
        prepared = await self._path.prepare([need for request in requests for _, need in request.needs])
        first = 0
        for request in requests:
            if request.done:
                first += len(request.needs)
                continue
            count = len(request.needs)
            request.take_prepared(prepared.epoch, prepared.decisions[first : first + count])
            first += count
            if request.undecided:
                self._ready.put(request)
            else:
                self._answer_if_done(request)

    # --- the call -------------------------------------------------------------------------------------------------------

    async def _call_for_ever(self, tasks: asyncio.TaskGroup) -> None:
        while True:
            await self._gather(self._ready, self._call_may_grow)
            requests = self._ready.take(self._share)
            # A process that was stopped for a while must not send what its callers gave up long ago.
            now = self._clock.monotonic()
            for request in requests:
                if request.deadline <= now:
                    self._give_up(request, "no answer within the deadline")
            requests = [request for request in requests if not request.done]
            if requests:
                self._untaken.append((requests, await self._call(requests)))
                # What is ready is sent first: Redis is busy with it while these are answered.
                tasks.create_task(self._take_next())

    async def _take_next(self) -> None:
        if self._untaken:
            self._take_called(*self._untaken.popleft())

    async def _call(self, requests: Sequence[_Request]) -> Called:
        epoch = self._path.epoch
        ops: list[Operation] = []
        for group, request in enumerate(requests):
            if request.proven_in != epoch:
                for position in request.undecided:
                    request.ops[position].proof = -1
            request.calling = _first_that_fit(request)
            for position in request.calling:
                op = request.ops[position]
                op.group = group
                ops.append(op)
        began = self._clock.monotonic()
        failpoints.hit("gateway.before_call")
        called = await self._path.call(ops, proven_in=epoch)
        self._batch_operations.observe(len(ops))
        self._batch_seconds.observe(self._clock.monotonic() - began)
        return called

    def _take_called(self, requests: Sequence[_Request], called: Called) -> None:
        """Give every request its decisions, and send each where it goes next."""
        by_mysql = called.store == "mysql"
        named = by_mysql or self._durability == "redis" or called.confirmed_m >= called.m
        decided = called.digest or (by_mysql and called.status is CallStatus.DECIDED)
        waiting: list[tuple[_Request, list[int]]] = []
        again: list[_Request] = []
        first = 0
        for request in requests:
            positions = request.calling
            decisions = called.decisions[first : first + len(positions)]
            first += len(positions)
            request.calling = ()
            if request.done:
                continue
            if decided:
                request.epoch, request.now_ms = called.epoch, called.now_ms
                request.stores |= _STORES[called.store]
            done = request.take_called(positions, decisions)
            if not named and (unnamed := _to_be_named(positions, decisions)):
                request.unnamed += unnamed
                waiting.append((request, unnamed))
            elif done:
                self._answer_if_done(request)
            if request.needs:
                self._lacking.put(request)
            elif not done and request.undecided:
                again.append(request)
        self._ready.put_back(again)
        if waiting:
            # Here and not right after the call: one that only said what is to be loaded first has no effect to lose.
            failpoints.hit("gateway.after_call")
            latest = max(request.deadline for request, _ in waiting)
            tell = partial(self._entry_named, waiting, self._clock.monotonic())
            self._unnamed_calls += 1
            self._confirmations.expect(called.epoch, called.m, called.digest, latest, tell)
        self._progress.set()

    def _entry_named(self, waiting: Sequence[tuple[_Request, list[int]]], since: float, confirmed: bool | None) -> None:
        """Answer the requests of one call, now that its entry is confirmed, or known not to be."""
        self._naming_seconds.observe(self._clock.monotonic() - since)
        self._unnamed_calls -= 1
        self._progress.set()
        for request, positions in waiting:
            if request.done:
                continue
            if not confirmed:
                why = "not confirmed in time" if confirmed is None else "another entry stands in its place"
                for position in positions:
                    request.decisions[position] = Failure("UNAVAILABLE", "unknown", why)
            request.unnamed = [position for position in request.unnamed if position not in positions]
            self._answer_if_done(request)


def _check(op: Operation) -> None:
    """Refuse what would spoil the call for the others."""
    if not (op.ref.isascii() and op.tenant.isascii()):
        raise ValueError("an order id, request number or tenant is not ASCII")
    lines = op.lines
    if (op.kind == Move.RESERVE and not lines) or (op.kind in REQUEST_MOVES and len(lines) != 1):
        raise ValueError(f"{op.kind.name} with {len(lines)} lines")
    if len(lines) > limits.LINES_PER_ORDER_MAX:
        raise ValueError(f"more than {limits.LINES_PER_ORDER_MAX} lines")
    for line in lines:
        if not line.inventory_key.isascii():
            raise ValueError("an inventory key is not ASCII")


def _first_that_fit(request: _Request) -> Sequence[int]:
    """The undecided operations that one call can take: all of them, but for a request that is larger than a call."""
    undecided = request.undecided
    if len(undecided) <= limits.BATCH_OPERATIONS_MAX and request.lines <= limits.BATCH_LINES_MAX:
        return undecided
    fitting: list[int] = []
    lines = 0
    for position in undecided[: limits.BATCH_OPERATIONS_MAX]:
        lines += len(request.ops[position].lines) or 1
        if fitting and lines > limits.BATCH_LINES_MAX:
            break
        fitting.append(position)
    return fitting


def _to_be_named(positions: Sequence[int], decisions: Sequence[Decision]) -> list[int]:
    return [
        position
        for position, decision in zip(positions, decisions, strict=True)
        if isinstance(decision, Result) and decision.wait
    ]


class _Counters:
    """Counts answered operations: in plain numbers at once, in the metrics when `flush` is called."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._answered: Counter[tuple[Move, Outcome | str]] = Counter()
        self._replayed: Counter[Move] = Counter()
        self._seconds: dict[Move, Timing] = {}

    def count(self, ops: Sequence[Operation], decisions: Sequence[Decision], seconds: float) -> None:
        """Count a request; `seconds` went by from submit to answer, and count once for each kind in it."""
        self.count_outcomes(ops, decisions)
        for kind in {op.kind for op in ops} if len(ops) > 1 else (ops[0].kind,):
            timing = self._seconds.get(kind)
            if timing is None:
                timing = self._seconds[kind] = self._metrics.operation_seconds.labels(kind.name)
            timing.observe(seconds)

    def count_outcomes(self, ops: Sequence[Operation], decisions: Sequence[Decision]) -> None:
        """Count what became of operations, those too that were refused at the door."""
        for op, decision in zip(ops, decisions, strict=True):
            if isinstance(decision, Result):
                self._answered[op.kind, decision.outcome] += 1
                if decision.replay:
                    self._replayed[op.kind] += 1
            else:
                self._answered[op.kind, f"{decision.code}_{decision.outcome}".upper()] += 1

    def flush(self) -> None:
        """Bring the metrics up to date."""
        for (kind, outcome), number in self._answered.items():
            name = outcome.name if isinstance(outcome, Outcome) else outcome
            self._metrics.operations_total.labels(kind.name, name).inc(number)
        for kind, number in self._replayed.items():
            self._metrics.replays_total.labels(kind.name).inc(number)
        self._answered.clear()
        self._replayed.clear()
