"""The path on which Redis decides: one script call for many operations, and what has to be known before it can decide.

A call never waits for MySQL. What the script could not decide comes back as NOT_LOADED or NEED_LOOKUP; `prepare` gets it
from MySQL, and the operations are asked again. `decide` does both in turn for callers that have one batch to decide; the
batcher uses the two steps by themselves, so that one batch's look-up runs beside another batch's call.
"""

import asyncio
from collections.abc import Awaitable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Literal, NamedTuple, TypeVar

import msgspec

import lua
from inventory.confirmations import NONE_KNOWN, Confirmations
from inventory.head import Position
from inventory.loading import LoadedKeys, Loader, LookUp, ReadBalance, Ref
from inventory.moves import REQUEST_MOVES, RESERVE_FAMILY
from inventory.operations import CallHeader, Operation, Reply, Result
from inventory.outcomes import CallStatus, Outcome
from inventory.shard_state import ShardWatch
from kernel import limits
from kernel.errors import ScriptFailed, StockgateError, StoreRefused, StoreUnavailable
from kernel.redis_door import RedisDoor
from kernel.redis_keys import EpochKeys
from kernel.scripts import Script
from kernel.settings import Settings

Got = TypeVar("Got")

FailureCode = Literal["UNAVAILABLE", "SHARD_CLOSED", "OVERLOADED", "TOO_MANY_REQUESTS"]
Store = Literal["redis", "mysql"]
FailureOutcome = Literal["not_executed", "unknown"]


class Failure(NamedTuple):
    """An operation that a store's trouble kept from being decided, or whose decision is not known.

    Stands where a `Result` would, so that one operation's trouble is not another's. After `unknown` the caller repeats
    with the same id; nothing is undone meanwhile.
    """

    code: FailureCode
    outcome: FailureOutcome
    detail: str
    retry_after_s: int = 1


Decision = Result | Failure

REPEATED: Final = frozenset({Outcome.NOT_LOADED, Outcome.NEED_LOOKUP, Outcome.SKIPPED})
"""Outcomes that no caller hears: something has to be got first, or an earlier operation has to be repeated."""


class Called(NamedTuple):
    """What one script call came to. (m, digest) is the log's last entry after it; 0 and "" where nothing was decided."""

    status: CallStatus
    epoch: int
    m: int
    digest: str
    confirmed_m: int
    now_ms: int
    """Redis' clock, UTC epoch ms; 0 where it was not asked."""
    decisions: list[Decision]
    """One for each operation, in their order; may hold the outcomes of `REPEATED`."""
    store: Store = "redis"
    """Who decided. What MySQL has committed waits for nothing; it has no entry."""


class Need(NamedTuple):
    """What one operation lacks: `keys` to be loaded, or without keys a look-up of its order or request."""

    op: Operation
    keys: tuple[str, ...] = ()
    asked: bool = True
    """Whether the script asked for it. Otherwise a look-up that fails is no failure yet: the script may know the id."""


class Prepared(NamedTuple):
    """What `prepare` got. Proofs were written into the operations and hold in `epoch` (0: none were)."""

    epoch: int
    decisions: list[Decision | None]
    """One for each need: None = ask the script (again)."""


class Decided(NamedTuple):
    """What a whole batch came to. (m, digest) is the last entry that any of its calls saw."""

    status: CallStatus
    epoch: int
    m: int
    digest: str
    confirmed_m: int
    now_ms: int
    decisions: list[Decision]


_pack: Final = msgspec.msgpack.Encoder().encode
_decode_reply: Final = msgspec.msgpack.Decoder(Reply).decode

EPOCH_LIMIT_S: Final = 1.0
"""So long a call waits for the shard's row at most: while MySQL hangs, what needs none of it must not stand behind it."""

_CLOSED: Final = Failure("SHARD_CLOSED", "not_executed", "the shard is between two epochs: nobody decides")
_OLDER: Final = Failure(
    "SHARD_CLOSED", "not_executed", "Redis came back without what was promised last: the shard is opened anew"
)
_ASKED_TOO_OFTEN: Final = Failure("UNAVAILABLE", "not_executed", "what it needs leaves Redis faster than it is loaded")


class Pending:
    """Operations that are decided together, over as many calls as that takes, in their order.

    The owner alternates: `needs` (to be prepared, may be empty), then a call with `undecided`, until that is empty.
    """

    __slots__ = ("decisions", "needs", "ops", "proven_in", "rounds", "undecided")

    def __init__(self, ops: Sequence[Operation], *, looks_up: bool) -> None:
        """`looks_up`: whether what may take stock is looked up before it is asked for the first time."""
        self.ops = ops
        self.decisions: list[Decision | None] = [None] * len(ops)
        self.undecided: list[int] = list(range(len(ops)))
        """Positions of the operations without a decision."""
        self.needs: list[tuple[int, Need]] = []
        """What operations lack, by position."""
        if looks_up:
            self.needs += [
                (position, Need(op, asked=False)) for position, op in enumerate(ops) if op.kind in RESERVE_FAMILY
            ]
        self.proven_in = 0
        """The epoch in which the operations' proofs hold."""
        self.rounds = 0

    def take_prepared(self, epoch: int, decisions: Iterable[Decision | None]) -> None:
        """Take what became of `needs`, decision by decision, and the epoch of the proofs (0: there are none)."""
        looked_up: set[int] = set()
        for (position, need), decision in zip(self.needs, decisions, strict=True):
            if decision is not None:
                self.decisions[position] = decision
            elif not need.keys:
                looked_up.add(position)
        if epoch and epoch != self.proven_in:
            for position in self.undecided:
                if position not in looked_up:
                    self.ops[position].proof = -1
            self.proven_in = epoch
        self.needs = []
        self.undecided = [position for position in self.undecided if self.decisions[position] is None]

    def take_called(self, positions: Sequence[int], decisions: Sequence[Decision]) -> bool:
        """Take the answers about the operations at `positions`, the first of `undecided`. Returns whether all is done."""
        for position, decision in zip(positions, decisions, strict=True):
            if isinstance(decision, Result) and decision.outcome in REPEATED:
                if decision.outcome != Outcome.SKIPPED:
                    self._note_need(position, decision)
            else:
                self.decisions[position] = decision
        self.undecided = [position for position in self.undecided if self.decisions[position] is None]
        if self.needs:
            self.rounds += 1
            if self.rounds >= limits.DECIDE_ROUNDS_MAX:
                self.take_prepared(0, [_ASKED_TOO_OFTEN] * len(self.needs))
        return not self.undecided

    def _note_need(self, position: int, result: Result) -> None:
        keys: tuple[str, ...] = tuple(result.detail) if result.outcome == Outcome.NOT_LOADED else ()
        self.needs.append((position, Need(self.ops[position], keys)))


class HotPath:
    """Decides by Redis, for one shard.

    `redis` is the shard's deciding connection in this process: calls go out on it one after the other. `loader` has a
    connection of its own. `confirmations`, where the process has them, know what was promised last.
    """

    def __init__(
        self,
        settings: Settings,
        redis: RedisDoor,
        loader: Loader,
        watch: ShardWatch,
        confirmations: Confirmations | None = None,
    ) -> None:
        self._confirmations = confirmations
        self._redis = redis
        self._loader = loader
        self._watch = watch
        self._reserve = lua.load("reserve")
        self._settle = lua.load("settle")
        self._bytes_max = (settings.unconfirmed_bytes_reserve_max, settings.unconfirmed_bytes_settle_max)
        self._filtered_in = 0
        # Half of the way to the deadline: the other half is for the call, and for saying why there was none.
        self._prepare_limit_s = settings.answer_deadline_ms / 2000

    @property
    def epoch(self) -> int:
        """The epoch that the next call will be made in, 0 while Redis does not decide."""
        return self._watch.hot_epoch

    @property
    def looks_up(self) -> bool:
        """Whether new orders have to be looked up, because the filter of the epoch, as it was last told, cannot say."""
        return not self._filtered_in or self._filtered_in != self._watch.hot_epoch

    # --- call ---------------------------------------------------------------------------------------------------------

    async def call(self, ops: Sequence[Operation], *, proven_in: int, term: int = 0) -> Called:
        """Let the script decide; never raises for a store's trouble, which becomes the decision of the operations.

        `proven_in` is the epoch in which the operations' proofs hold. Told that the epoch is over, it reads the shard's
        row and asks once more if that names a newer one, since nothing was decided. A call whose reply is lost is not
        repeated: its operations fail `unknown`, and repeating is up to the caller.
        """
        epoch = self._watch.hot_epoch
        if not epoch or epoch < self._newest_epoch():
            epoch = await self._epoch_now()
        if not epoch:
            return _nothing_decided(CallStatus.NO_HEAD, 0, ops, _CLOSED)
        called = await self._call_in(epoch, ops, proven_in, term)
        if called.status in {CallStatus.NO_HEAD, CallStatus.FENCED, CallStatus.NOT_CONTINUATION}:
            newer = await self._epoch_now()
            if newer > epoch:
                called = await self._call_in(newer, ops, proven_in, term)
        return called

    async def _epoch_now(self) -> int:
        """The epoch in which Redis decides by the row as it is now; the one known so far if MySQL does not answer.

        0 where nobody decides, or a newer one is known of than the row that was read last.
        """
        with suppress(StockgateError, TimeoutError):
            async with asyncio.timeout(EPOCH_LIMIT_S):
                await self._watch.refresh()
        epoch = self._watch.hot_epoch
        return epoch if epoch == self._newest_epoch() else 0

    async def _call_in(self, epoch: int, ops: Sequence[Operation], proven_in: int, term: int) -> Called:
        if proven_in != epoch:
            for op in ops:
                op.proof = -1
        header = CallHeader(epoch, term, *self._bytes_max, *self._known(epoch))
        script = self._settle if RESERVE_FAMILY.isdisjoint({op.kind for op in ops}) else self._reserve
        try:
            return await self._run(script, header, ops)
        except StoreRefused as refused:
            if refused.code == "OOM" and script is self._reserve:
                return await self._call_without_reserves(header, ops, refused)
            return _nothing_decided(CallStatus.DECIDED, epoch, ops, _unavailable(refused))
        except StoreUnavailable as trouble:
            return _nothing_decided(CallStatus.DECIDED, epoch, ops, _unavailable(trouble))
        except (ScriptFailed, msgspec.MsgspecError) as bug:
            return _nothing_decided(CallStatus.DECIDED, epoch, ops, Failure("UNAVAILABLE", "unknown", str(bug)))

    def _known(self, epoch: int) -> Position:
        """The highest entry of `epoch` that this process knows to be confirmed: named to it, or applied in MySQL.

        What was read from MySQL in order to be loaded counts: it may come of an entry that Redis has lost, and a call
        must not mix it with what is older.
        """
        row = self._watch.row
        polled = Position(row.applied_m, row.applied_digest) if row is not None and row.epoch == epoch else NONE_KNOWN
        read_in, read = self._loader.applied
        named = self._confirmations.known(epoch) if self._confirmations is not None else NONE_KNOWN
        known = max(polled, named, read if read_in == epoch else NONE_KNOWN)
        return known if known.m else NONE_KNOWN

    def _newest_epoch(self) -> int:
        """The highest epoch that this process has heard of, MySQL's own ones (db mode) among them.

        Those before it are over, whatever Redis says of them.
        """
        named_in = self._confirmations.epoch if self._confirmations is not None else 0
        row = self._watch.row
        return max(row.epoch if row is not None else 0, named_in, self._loader.applied[0])

    async def _call_without_reserves(
        self, header: CallHeader, ops: Sequence[Operation], refused: StoreRefused
    ) -> Called:
        """A full Redis takes no orders, but what gives stock back or finishes with it runs on."""
        settling = [op for op in ops if op.kind not in RESERVE_FAMILY]
        if not settling:
            return _nothing_decided(CallStatus.DECIDED, header.epoch, ops, _unavailable(refused))
        called = await self._call_in(header.epoch, settling, header.epoch, header.term)
        settled = iter(called.decisions)
        failure = _unavailable(refused)
        return called._replace(decisions=[failure if op.kind in RESERVE_FAMILY else next(settled) for op in ops])

    async def _run(self, script: Script, header: CallHeader, ops: Sequence[Operation]) -> Called:
        keys = EpochKeys(self._watch.shard, header.epoch)
        packed = await self._redis.run(script, _declared(keys, ops), (_pack(header), _pack(ops)))
        reply = _decode_reply(packed)
        if reply.status != CallStatus.DECIDED:
            failure = _OLDER if reply.status == CallStatus.NOT_CONTINUATION else _CLOSED
            return _nothing_decided(reply.status, header.epoch, ops, failure)
        if len(reply.results) != len(ops):
            raise ScriptFailed(f"{script.name} answered {len(reply.results)} of {len(ops)} operations")
        self._filtered_in = header.epoch if reply.filtered else 0
        decisions: list[Decision] = [*reply.results]
        return Called(reply.status, header.epoch, reply.m, reply.digest, reply.confirmed_m, reply.now_ms, decisions)

    # --- prepare ------------------------------------------------------------------------------------------------------

    async def prepare(self, needs: Sequence[Need]) -> Prepared:
        """Get what operations lack from MySQL into Redis, all of them together; never raises for a store's trouble.

        An operation whose order or request MySQL does not know gets the proof of that. One whose record was found gets
        none: proofs are of absence, and the record might leave Redis again before the call.
        """
        refs: dict[bool, dict[Ref, None]] = {False: {}, True: {}}
        keys: dict[str, None] = {}
        for op, missing, _ in needs:
            if missing:
                keys.update(dict.fromkeys(missing))
            else:
                refs[op.kind in REQUEST_MOVES][op.tenant, op.ref] = None
        found: LookUp | Failure | None = None
        loaded: LoadedKeys | Failure | None = None
        if refs[False] or refs[True]:
            found = await self._attempt(self._loader.look_up(list(refs[False]), list(refs[True])))
        if keys:
            loaded = await self._attempt(self._loader.load_keys(list(keys)))
        decisions: list[Decision | None] = []
        for need in needs:
            if need.keys:
                decisions.append(_after_loading(need, loaded))
            else:
                decisions.append(_after_look_up(need, found))
        return Prepared(found.epoch if isinstance(found, LookUp) else 0, decisions)

    async def _attempt(self, getting: Awaitable[Got]) -> Got | Failure:
        try:
            async with asyncio.timeout(self._prepare_limit_s):
                return await getting
        except TimeoutError:
            return Failure("UNAVAILABLE", "not_executed", f"no look-up within {self._prepare_limit_s:g} s")
        except StockgateError as trouble:
            return Failure("UNAVAILABLE", "not_executed", str(trouble))

    # --- both ---------------------------------------------------------------------------------------------------------

    async def decide(self, ops: Sequence[Operation], *, term: int = 0) -> Decided:
        """Decide a batch to its end. At most one call's worth of operations and lines; `group` as the caller set it.

        Never raises for a store's trouble. Once the leader's `term` is over (`STALE_TERM`) nothing more is decided.
        """
        pending = Pending(ops, looks_up=self.looks_up)
        called = entry = Called(CallStatus.DECIDED, 0, 0, "", 0, 0, [])
        while pending.undecided:
            if pending.needs:
                prepared = await self.prepare([need for _, need in pending.needs])
                pending.take_prepared(prepared.epoch, prepared.decisions)
            if positions := pending.undecided:
                asked = [ops[position] for position in positions]
                called = await self.call(asked, proven_in=pending.proven_in, term=term)
                pending.take_called(positions, called.decisions)
                entry = called if called.digest else entry
        decisions = [decision for decision in pending.decisions if decision is not None]
        return Decided(called.status, entry.epoch, entry.m, entry.digest, entry.confirmed_m, entry.now_ms, decisions)

    async def read_balances(self, keys: Sequence[str]) -> dict[str, ReadBalance]:
        """Read keys as they stand, without loading them: from Redis where they are in this epoch, else from MySQL.

        Unknown keys are absent. Raises what the doors raise where MySQL is asked and away; without Redis all come from
        MySQL, and say so.
        """
        # The names of an epoch that is over may still be there: who sees a change answered must not read before it.
        epoch = await self._epoch_now()
        try:
            return await self._loader.read_balances(epoch, self._known(epoch), keys)
        except StoreUnavailable as trouble:
            if trouble.store != "redis":
                raise
            return await self._loader.read_balances(0, NONE_KNOWN, keys)


def _unavailable(trouble: StoreUnavailable) -> Failure:
    return Failure("UNAVAILABLE", trouble.outcome, str(trouble))


def _nothing_decided(status: CallStatus, epoch: int, ops: Sequence[Operation], failure: Failure) -> Called:
    return Called(status, epoch, 0, "", 0, 0, [failure] * len(ops))


def _declared(keys: EpochKeys, ops: Sequence[Operation]) -> list[str]:
    """The names of a call: the shard's own, and every record and balance that the caller knows, each once."""
    order, balance = keys.prefix + "o:", keys.prefix + "k:"
    names: dict[str, None] = {}
    for op in ops:
        names[keys.request(op.tenant, op.ref) if op.kind in REQUEST_MOVES else f"{order}{op.tenant}/{op.ref}"] = None
        for line in op.lines:
            names[balance + line.inventory_key] = None
    return [keys.head, keys.log, keys.opened, keys.due, keys.settled, *names]


def _after_look_up(need: Need, found: LookUp | Failure | None) -> Decision | None:
    """Give the operation its proof where MySQL does not know its record; decide it where that cannot be said."""
    op = need.op
    op.proof = -1
    if not isinstance(found, LookUp):
        return found if need.asked else None
    ref = (op.tenant, op.ref)
    if ref in found.parked:
        return Result(Outcome.KEY_FROZEN, detail=found.parked[ref])
    if ref in found.damaged:
        return Failure("UNAVAILABLE", "not_executed", "MySQL has this order in part only: see the audit")
    if ref not in (found.requests if op.kind in REQUEST_MOVES else found.orders):
        op.proof = found.applied_m
    return None


def _after_loading(need: Need, loaded: LoadedKeys | Failure | None) -> Decision | None:
    """Refuse the operation where a key it needs is not to be had."""
    if not isinstance(loaded, LoadedKeys):
        return loaded
    if unknown := [key for key in need.keys if key in loaded.unknown]:
        # An order's line on a key that MySQL lacks is damage, not a caller's mistake.
        outcome = Outcome.UNKNOWN_INVENTORY_KEY if need.op.kind in RESERVE_FAMILY else Outcome.LOST
        return Result(outcome, detail=unknown)
    if held := [key for key in need.keys if key in loaded.held]:
        return Result(Outcome.KEY_FROZEN, detail=held)
    return None
