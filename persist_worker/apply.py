"""Makes batches durable: tries each one until it is committed, and says what may be acknowledged then.

Whatever interrupts an attempt, the next one begins with the shard row and finds what the last one did: a lost answer to
COMMIT, a redelivery and a second worker all look the same, and none of them does harm.
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from inventory.ledger import DRIVER_REFUSALS, Batch, DataRefused, NoShardRow, apply_batch, find_refused
from inventory.plan import EventName, Plan
from inventory.sequence import GapMemory, LockedShard, Stop, Verdict
from kernel.amqp_door import Delivery
from kernel.clock import Clock
from kernel.errors import DataRejected, DuplicateKey, Retryable, StatementFailed, StoreUnavailable
from kernel.logs import Logger
from kernel.mysql_door import Database
from persist_worker.gather import Received

BACKOFF_FIRST_S: Final = 0.05
BACKOFF_MAX_S: Final = 2.0


class GaveUp(Exception):
    """The process was asked to end while the batch could not be committed: its messages stay in the queue."""


@dataclass(slots=True)
class Applied:
    """A committed batch."""

    plan: Plan
    acknowledge: list[Delivery] = field(default_factory=list[Delivery])
    """In delivery order. If `all_done` these are all deliveries up to the last one."""
    all_done: bool = False


class Applier:
    """Applies the batches of one consumer. What waits for a gap is kept here, unacknowledged."""

    def __init__(self, database: Database, shard: int, clock: Clock, log: Logger) -> None:
        self._database = database
        self._shard = shard
        self._clock = clock
        self._log = log
        self._held: list[Received] = []
        self._memory = GapMemory()
        self.trouble = ""
        """Why the last attempt failed; empty after one that did not."""

    @property
    def waits_for_gap(self) -> bool:
        """Whether something was missing at the last attempt: then it is worth asking again without a new message."""
        return self._memory.since_ms > 0

    @property
    def waiting(self) -> int:
        """Messages that wait for one before them."""
        return len(self._held)

    def forget_deliveries(self) -> None:
        """The consumer has ended: what was held will be delivered again."""
        self._held.clear()

    async def apply(self, received: Sequence[Received], stop: asyncio.Event) -> Applied:
        """Commit a batch, however often that takes. Raises GaveUp if `stop` is set while MySQL is in trouble."""
        items = [*self._held, *received]
        plan = await self._commit(items, stop)
        self._memory = plan.memory
        self._held = [item for item, verdict in zip(items, plan.verdicts, strict=True) if verdict is Verdict.HELD]
        done = [item.delivery for item, verdict in zip(items, plan.verdicts, strict=True) if verdict is Verdict.DONE]
        done.sort(key=lambda delivery: delivery.tag)
        return Applied(plan, done, len(done) == len(items))

    async def _commit(self, items: Sequence[Received], stop: asyncio.Event) -> Plan:
        incoming = [item.incoming for item in items]
        proven: dict[EventName, str] = {}
        batch = Batch(self._shard, incoming, self._memory, proven)
        backoff_s = BACKOFF_FIRST_S
        while True:
            try:
                plan = await apply_batch(self._database, batch, self._clock)
            except Retryable as failure:
                self._log.info("batch_retried", shard=self._shard, why=str(failure))
                self.trouble = str(failure)
            except (StoreUnavailable, StatementFailed, NoShardRow) as failure:
                self._note(str(failure))
            except (DataRejected, DuplicateKey, *DRIVER_REFUSALS) as failure:
                self._log.warning("batch_refused", shard=self._shard, why=str(failure))
                batch = await self._blame(batch, proven)
            else:
                self.trouble = ""
                return plan
            if stop.is_set() and self.trouble:
                raise GaveUp
            await _sleep(backoff_s * random.uniform(0.5, 1.0), stop)
            backoff_s = min(2 * backoff_s, BACKOFF_MAX_S)

    async def _blame(self, batch: Batch, proven: dict[EventName, str]) -> Batch:
        """Find the event that the server refuses, so that the next attempt parks it; or stop before the batch."""
        try:
            name, why = await find_refused(self._database, batch, self._clock)
        except DataRefused as failure:
            return Batch(batch.shard, batch.incoming, batch.memory, proven, Stop(0, "DATA_ERROR", str(failure)))
        except (Retryable, StoreUnavailable, StatementFailed) as failure:
            self._log.info("blame_retried", shard=self._shard, why=str(failure))
        else:
            proven[name] = why
            self._log.error("event_refused", shard=self._shard, m=name[0], inventory_key=name[2], why=why)
        return batch

    def _note(self, trouble: str) -> None:
        if trouble != self.trouble:
            self._log.error("mysql_in_trouble", shard=self._shard, why=trouble)
        self.trouble = trouble


def stopped_state(shard: LockedShard) -> tuple[object, ...]:
    """What must change in the shard's row before a stopped worker tries again: all that it judges messages by."""
    return (
        shard.mode,
        shard.epoch,
        shard.term,
        shard.applied_term,
        shard.applied_m,
        shard.applied_digest,
        shard.held_version,
        shard.alarm,
    )


async def _sleep(seconds: float, stop: asyncio.Event) -> None:
    """Sleep, but not on after `stop`: the last attempts follow each other quickly."""
    if stop.is_set():
        await asyncio.sleep(min(seconds, BACKOFF_FIRST_S))
        return
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
