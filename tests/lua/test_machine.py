"""The real scripts beside a small model, driven by Hypothesis over epochs, evictions, loads, holds and passing time."""

import copy
import itertools
import os
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from inventory import events
from inventory.moves import MOVES, REQUEST_MOVES, LineState, Move, Quantities
from inventory.operations import Operation, Result
from inventory.outcomes import Outcome
from tests.lua.model import Balance, Model
from tests.lua.shard import LONG_MS, TENANT, Shard, order_op, pack, request_op, reserve_all

KEYS = ("a", "b b", "c@{x}/1")
REFS = ("o1", "o2", "o3", "o4", "o5")
REQUESTS = ("r1", "r2", "r3", "r4")
BLOCKING = {Outcome.NOT_LOADED, Outcome.NEED_LOOKUP}
PAST = 1
SHORT_MS = 1
LATER = -1
"""Stands for a time to live that is longer than any before: equal ones would differ by the clock's milliseconds."""
RANK_MS = 10_000_000

keys = st.sampled_from(KEYS)
quantities = st.dictionaries(keys, st.integers(1, 3), min_size=1, max_size=3)
order_operations = st.one_of(
    st.builds(
        lambda ref, qty, buyer, ttl_ms: reserve_all(ref, qty, proof=-1, ttl_ms=ttl_ms, buyer=buyer),
        st.sampled_from(REFS),
        quantities,
        st.sampled_from(["", "anna", "bert"]),
        st.sampled_from([0, LONG_MS, LONG_MS, LONG_MS]),
    ),
    st.builds(
        lambda kind, ref, some, reason: order_op(kind, ref, *some, proof=-1, reason=reason),
        st.sampled_from([Move.CONFIRM, Move.CONFIRM, Move.RELEASE, Move.CONSUME, Move.RETURN]),
        st.sampled_from(REFS),
        st.sets(keys, max_size=2),
        st.sampled_from(["", "cancelled"]),
    ),
    st.builds(
        lambda kind, ref, ttl_ms: order_op(kind, ref, proof=-1, ttl_ms=ttl_ms),
        st.sampled_from([Move.READ, Move.EXPIRE, Move.EXTEND]),
        st.sampled_from(REFS),
        st.sampled_from([SHORT_MS, LATER]),
    ),
)
request_operations = st.builds(
    lambda kind, ref, key, qty, version: request_op(
        kind, ref, key, qty if kind is Move.ADJUST else abs(qty) or 1, proof=-1, base_version=version
    ),
    st.sampled_from(sorted(REQUEST_MOVES)),
    st.sampled_from(REQUESTS),
    keys,
    st.integers(-3, 6),
    st.sampled_from([-1, -1, 0, 1]),
)
batches = st.lists(st.one_of(order_operations, order_operations, request_operations), min_size=1, max_size=5)


class ScriptsBesideModel(RuleBasedStateMachine):
    """`model` is what MySQL would hold once everything is applied; a record or key that Redis lacks is loaded from it."""

    client: Any
    numbers = itertools.count(1_000_000)

    @initialize(stock=st.lists(st.integers(0, 6), min_size=len(KEYS), max_size=len(KEYS)))
    def begin(self, stock: list[int]) -> None:
        self.model = Model({key: Balance([n, 0, 0, 0, 0], adjusted=n) for key, n in zip(KEYS, stock, strict=True)})
        self.shard = Shard(self.client, next(self.numbers))
        self.shard.open()
        self.loaded: set[str] = set()
        self.in_redis: set[str] = set()
        self.logged: dict[str, Balance] = copy.deepcopy(self.model.balances)
        self.paths: dict[tuple[str, int], list[LineState]] = {}
        self.stale_rows = [self.row(key) for key in KEYS]
        self.read_to, self.digest = 0, self.shard.genesis
        self.rank = 0

    # --- what MySQL would give to a loader ---

    def row(self, key: str) -> list[Any]:
        balance = self.model.balances[key]
        return [key, *balance.quantities, balance.seq, balance.version]

    def order_row(self, ref: str) -> list[Any]:
        order = self.model.orders[ref]
        due_ms = PAST if order.past_due else self.due_ms(order.due_rank)
        lines = [[line.key, line.qty, line.state, line.reason, 1, 1] for line in order.lines]
        return [TENANT, ref, order.fingerprint, due_ms, order.buyer_id, 1, len(lines), lines]

    def due_ms(self, rank: int) -> int:
        seconds, _ = self.client.time()
        return seconds * 1000 + max(LONG_MS, rank * RANK_MS)

    def load_record(self, operation: Operation) -> None:
        """What a gateway does after NEED_LOOKUP: SELECT, load what is there, ask again with the proof."""
        operation.proof = self.shard.head("m")
        ref = operation.ref
        if operation.kind in REQUEST_MOVES:
            if ref in self.model.requests:
                fingerprint, kind, view = self.model.requests[ref]
                assert self.shard.load_orders(operation.proof, [], [[TENANT, ref, fingerprint, kind, view]]) == 1
                self.in_redis.add(f"q:{TENANT}/{ref}")
        elif ref in self.model.orders:
            assert self.shard.load_orders(operation.proof, [self.order_row(ref)]) == 1
            self.in_redis.add(f"o:{TENANT}/{ref}")

    # --- rules ---

    @rule(operations=batches)
    def decide(self, operations: list[Operation]) -> None:
        """One request: decided, and repeated from where it was blocked, as the hot path does."""
        rest = list(operations)
        for operation in rest:
            if operation.ttl_ms == LATER:
                self.rank += 1
                operation.ttl_ms = self.rank * RANK_MS
        for _ in range(4 * len(operations) + 1):
            if not rest:
                return
            m_before = self.shard.head("m")
            image = self.shard.image()
            before = copy.deepcopy(self.model)
            reply = self.shard.call(*rest)
            for operation, result in zip(rest, reply.results, strict=True):
                if result.outcome in BLOCKING:
                    self.answer_need(operation, result)
                    break
                self.compare(operation, result)
            done = next((i for i, r in enumerate(reply.results) if r.outcome in BLOCKING), len(rest))
            assert all(r.outcome is Outcome.SKIPPED for r in reply.results[done + 1 :])
            rest = rest[done:]
            if self.model == before:
                assert reply.m == m_before, "nothing changed, nothing appended"
                if not rest:
                    assert self.shard.image() == image
            else:
                assert reply.m == m_before + 1, "one entry for whatever one call changed"
        raise AssertionError("blocked for ever")

    def answer_need(self, operation: Operation, result: Result) -> None:
        if result.outcome is Outcome.NOT_LOADED:
            assert result.detail
            assert not self.loaded & set(result.detail)
            assert self.shard.load_keys([self.row(key) for key in result.detail]) == len(result.detail)
            self.loaded |= set(result.detail)
            self.shard.freeze(1, *(self.model.frozen & self.loaded))
        else:
            prefix = "q" if operation.kind in REQUEST_MOVES else "o"
            assert f"{prefix}:{TENANT}/{operation.ref}" not in self.in_redis
            self.load_record(operation)

    def compare(self, operation: Operation, result: Result) -> None:
        expected = self.model.decide(operation)
        assert (result.outcome, result.replay) == (expected.outcome, expected.replay), operation
        if operation.kind in REQUEST_MOVES:
            if result.outcome is Outcome.DONE:
                self.in_redis.add(f"q:{TENANT}/{operation.ref}")
                assert result.detail == self.model.requests[operation.ref][2]
        elif result.outcome is Outcome.DONE:
            self.in_redis.add(f"o:{TENANT}/{operation.ref}")
            lines = [(line.key, line.qty, line.state, line.reason) for line in self.model.orders[operation.ref].lines]
            view = result.order_view()
            assert [(x.inventory_key, x.qty, x.state, x.reason) for x in view.lines] == lines

    @rule(ref=st.sampled_from(REFS))
    def time_passes(self, ref: str) -> None:
        order = self.model.orders.get(ref)
        if order and not order.past_due and order.positions(LineState.RESERVED):
            order.past_due = True
            name = f"o:{TENANT}/{ref}"
            if name in self.in_redis:
                h = msgspec.msgpack.decode(self.client.hget(self.shard.names.prefix + name, "h"))
                h[1] = PAST
                self.client.hset(self.shard.names.prefix + name, "h", pack(h))
                self.client.zadd(self.shard.names.due, {name: PAST})

    @rule()
    def everything_is_confirmed_and_old_records_leave(self) -> None:
        m = self.shard.confirm_all()
        left = self.shard.evict(m)
        settled = {
            name
            for name in self.in_redis
            if name.startswith("q:") or not self.model.orders[name.rpartition("/")[2]].positions(LineState.RESERVED)
        }
        assert left == len(settled)
        self.in_redis -= settled

    @rule(ref=st.sampled_from(REFS))
    def a_late_loader_changes_nothing(self, ref: str) -> None:
        late = [row for row in self.stale_rows if row[0] in self.loaded]
        assert self.shard.load_keys(late) == 0
        if f"o:{TENANT}/{ref}" in self.in_redis:
            stale = [TENANT, ref, "0" * 16, PAST, "", 1, 1, [["a", 1, LineState.RESERVED, "", 1, 1]]]
            assert self.shard.load_orders(self.shard.head("m"), [stale]) == 0
        if self.shard.head("evicted_m") > 0:
            stale = [TENANT, "long-gone", "0" * 16, PAST, "", 1, 1, [["a", 1, LineState.RESERVED, "", 1, 1]]]
            assert self.shard.load_orders(self.shard.head("evicted_m") - 1, [stale]) == -5

    @rule(key=keys)
    def hold_or_lift(self, key: str) -> None:
        if key in self.loaded:
            self.model.frozen ^= {key}
            assert self.shard.freeze(int(key in self.model.frozen), key) == 1

    @rule()
    def a_new_epoch_begins(self) -> None:
        """All is applied, the old epoch is fenced, the next begins with empty names."""
        self.read_log()
        old = self.shard
        old.fence(1)
        self.shard = Shard(self.client, old.number, old.names.epoch + 1)
        self.shard.open()
        assert old.load_keys([self.row("a")]) == -2
        assert old.call(order_op(Move.READ, "o1")).results == []
        self.loaded, self.in_redis = set(), set()
        self.stale_rows = [self.row(key) for key in KEYS]
        self.read_to, self.digest = 0, self.shard.genesis

    # --- invariants ---

    @invariant()
    def quantities_are_the_models_never_negative_and_conserved(self) -> None:
        for balance in self.model.balances.values():
            assert min(balance.quantities) >= 0
            assert sum(balance.quantities) == balance.adjusted
        code, rows = self.shard.read_keys(*KEYS)
        assert code == 0
        for row in rows:
            loaded = row[1] in self.loaded
            assert row[0] == (1 if loaded else 0)
            if loaded:
                assert row[1:9] == self.row(row[1])
                assert row[9] == int(row[1] in self.model.frozen)

    @invariant()
    def every_record_stands_in_the_set_it_belongs_to(self) -> None:
        due = {name.decode() for name in self.client.zrange(self.shard.names.due, 0, -1)}
        settled = {name.decode() for name in self.client.zrange(self.shard.names.settled, 0, -1)}
        held = {
            name
            for name in self.in_redis
            if name.startswith("o:") and self.model.orders[name.rpartition("/")[2]].positions(LineState.RESERVED)
        }
        assert (due, settled) == (held, self.in_redis - held)

    @invariant()
    def read_log(self) -> None:
        """The chain holds, every key's seq is dense, after-images are sums, and a line's path is one of the table."""
        for m, digest, payload, _ in self.shard.entries()[self.read_to :]:
            assert m == self.read_to + 1
            self.digest = events.chain(self.digest, payload)
            assert digest == self.digest
            self.read_to = m
            for change in events.decode_changes(payload):
                for event in change.events:
                    self.read_event(change, event)
        assert self.shard.end() == (self.read_to, self.digest)

    def read_event(self, change: events.Change, event: events.Event) -> None:
        at = self.logged[event.inventory_key]
        deltas = [event.d_available, event.d_reserved, event.d_sold, event.d_consumed, event.d_locked]
        assert Quantities(*deltas) == tuple(sign * event.qty for sign in MOVES[change.kind].signs)
        at.quantities = [n + d for n, d in zip(at.quantities, deltas, strict=True)]
        assert at.quantities == [event.available, event.reserved, event.sold, event.consumed, event.locked]
        assert event.seq == at.seq + 1
        at.seq = event.seq
        if change.kind in REQUEST_MOVES:
            return
        path = self.paths.setdefault((change.ref, event.position), [LineState.NONE])
        assert (path[-1], LineState(event.state)) == MOVES[change.kind][:2]
        path.append(LineState(event.state))
        given_back = [s for s in path if s in {LineState.RELEASED, LineState.RETURNED}]
        assert len(given_back) <= 1, "stock goes back at most once"


def test_the_scripts_do_what_the_model_says(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ScriptsBesideModel, "client", client, raising=False)
    examples = int(os.environ.get("STOCKGATE_MACHINE_EXAMPLES", "60"))
    run_state_machine_as_test(
        ScriptsBesideModel,
        settings=settings(
            max_examples=examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=examples == 60,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
        ),
    )
