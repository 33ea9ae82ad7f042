"""Operations on their way to a decision: what a proof of one epoch is worth beside a look-up of the next."""

from inventory.hot_path import Failure, Pending
from inventory.moves import Move
from inventory.operations import Line, Operation, Result
from inventory.outcomes import Outcome
from kernel import limits


def reserve(ref: str) -> Operation:
    return Operation(Move.RESERVE, 0, "shop", ref, lines=[Line("k", 1)])


def confirm(ref: str) -> Operation:
    return Operation(Move.CONFIRM, 0, "shop", ref)


def test_only_what_may_take_stock_is_looked_up_unasked() -> None:
    pending = Pending([confirm("a"), reserve("b"), confirm("c")], looks_up=True)
    assert [(position, need.op.ref, need.asked) for position, need in pending.needs] == [(1, "b", False)]
    assert pending.undecided == [0, 1, 2]


def test_a_proof_ends_with_its_epoch_where_another_operation_is_looked_up_anew() -> None:
    first, second = reserve("a"), reserve("b")
    pending = Pending([first, second], looks_up=True)
    first.proof = second.proof = 7
    pending.take_prepared(1, [None, None])
    assert pending.proven_in == 1
    not_loaded = Result(Outcome.NOT_LOADED, detail=["k"])
    assert not pending.take_called([0, 1], [not_loaded, Result(Outcome.NEED_LOOKUP)])
    assert [need.keys for _, need in pending.needs] == [("k",), ()]
    second.proof = 3
    pending.take_prepared(2, [None, None])
    assert (first.proof, second.proof, pending.proven_in) == (-1, 3, 2)


def test_loading_keys_leaves_the_proofs_alone() -> None:
    op = reserve("a")
    pending = Pending([op], looks_up=True)
    op.proof = 7
    pending.take_prepared(1, [None])
    pending.take_called([0], [Result(Outcome.NOT_LOADED, detail=["k"])])
    pending.take_prepared(0, [None])
    assert (op.proof, pending.proven_in) == (7, 1)


def test_what_is_skipped_is_asked_again_with_what_stands_before_it() -> None:
    pending = Pending([confirm("a"), confirm("b"), confirm("c")], looks_up=True)
    done = Result(Outcome.DONE)
    assert not pending.take_called([0, 1, 2], [done, Result(Outcome.NEED_LOOKUP), Result(Outcome.SKIPPED)])
    assert pending.undecided == [1, 2]
    unavailable = Failure("UNAVAILABLE", "not_executed", "no look-up")
    pending.take_prepared(0, [unavailable])
    assert pending.undecided == [2]
    assert pending.take_called([2], [done])
    assert pending.decisions == [done, unavailable, done]


def test_the_rounds_are_bounded_but_skipping_is_not_a_round() -> None:
    pending = Pending([confirm("a"), confirm("b")], looks_up=True)
    for _ in range(3 * limits.DECIDE_ROUNDS_MAX):
        assert not pending.take_called([0, 1], [Result(Outcome.SKIPPED), Result(Outcome.SKIPPED)])
    for _ in range(limits.DECIDE_ROUNDS_MAX - 1):
        assert not pending.take_called([0, 1], [Result(Outcome.NEED_LOOKUP), Result(Outcome.SKIPPED)])
        pending.take_prepared(1, [None])
    assert not pending.take_called([0, 1], [Result(Outcome.NEED_LOOKUP), Result(Outcome.SKIPPED)])
    assert isinstance(pending.decisions[0], Failure)
    assert pending.undecided == [1]
    assert pending.needs == []
