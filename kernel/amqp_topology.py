"""Names and arguments in RabbitMQ: one quorum queue and one leader lock per shard."""

from typing import Final

from kernel import limits


def log_queue(shard: int) -> str:
    """The quorum queue that carries the shard's log to the persist worker."""
    return f"sg.{shard}.log"


def leader_lock(shard: int) -> str:
    """The exclusive queue whose owner is the shard's leader."""
    return f"sg.{shard}.leader"


LOG_QUEUE_ARGUMENTS: Final[dict[str, str | int | bool]] = {
    "x-queue-type": "quorum",
    # Before 4.0 a quorum queue without a limit returns messages to its back; from 4.0 the default of 20 drops them.
    "x-delivery-limit": limits.DELIVERY_LIMIT,
    "x-single-active-consumer": True,
    # A full queue must refuse the publisher, never drop its head.
    "x-overflow": "reject-publish",
}
