import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.compare import InMySQL, InRedis, KeyClass, Reading, classify, proven
from inventory.moves import Quantities

SOME = Quantities(5, 1, 0, 0, 0)
OTHER = Quantities(4, 2, 0, 0, 0)


@pytest.mark.parametrize(
    ("mysql", "redis", "expected"),
    [
        (InMySQL(SOME, 7), None, KeyClass.COLD),
        (InMySQL(SOME, 7), InRedis(SOME, 7), KeyClass.HEALTHY),
        (InMySQL(SOME, 7), InRedis(OTHER, 8), KeyClass.IN_FLIGHT),
        (InMySQL(SOME, 7), InRedis(OTHER, 7), KeyClass.DRIFTED),
        (InMySQL(SOME, 7), InRedis(SOME, 6), KeyClass.LOST),
        (InMySQL(SOME, 7), InRedis(None, 0), KeyClass.LOST),
        (None, InRedis(SOME, 7), KeyClass.LOST),
        (InMySQL(SOME, 7, held=True), InRedis(OTHER, 9), KeyClass.IN_FLIGHT),
    ],
)
def test_the_class_of_a_key(mysql: InMySQL | None, redis: InRedis | None, expected: KeyClass) -> None:
    assert classify(mysql, redis) is expected


def reading(mysql: InMySQL | None, redis: InRedis | None, epoch: int = 3) -> Reading:
    return Reading(epoch, "k", mysql, redis)


def test_a_drift_is_proven_by_the_same_two_readings_in_one_epoch() -> None:
    drifted = reading(InMySQL(SOME, 7), InRedis(OTHER, 7))
    assert proven(drifted, drifted)
    assert not proven(drifted, reading(InMySQL(SOME, 7), InRedis(OTHER, 7), epoch=4))
    assert not proven(drifted, reading(InMySQL(OTHER, 8), InRedis(SOME, 8))), "it moved in between"
    assert not proven(drifted, reading(InMySQL(SOME, 7), InRedis(OTHER, 8))), "it is in flight now"


def test_a_lost_key_is_proven_by_being_lost_twice_in_one_epoch() -> None:
    lost = reading(InMySQL(SOME, 7), InRedis(None, 0))
    assert proven(lost, reading(InMySQL(SOME, 8), InRedis(None, 0)))
    assert not proven(lost, reading(InMySQL(SOME, 7), InRedis(None, 0), epoch=4))
    assert not proven(lost, reading(InMySQL(SOME, 7), InRedis(SOME, 7)))


quantities = st.builds(Quantities, *[st.integers(0, 3)] * 5)
in_mysql = st.none() | st.builds(InMySQL, quantities, st.integers(0, 4), st.booleans())
in_redis = st.none() | st.builds(InRedis, st.none() | quantities, st.integers(0, 4))


@given(in_mysql, in_redis, in_mysql, in_redis)
def test_only_what_has_to_be_repaired_is_ever_proven(
    mysql: InMySQL | None, redis: InRedis | None, mysql_later: InMySQL | None, redis_later: InRedis | None
) -> None:
    first, second = reading(mysql, redis), reading(mysql_later, redis_later)
    if proven(first, second):
        assert first.key_class in {KeyClass.DRIFTED, KeyClass.LOST}
        assert second.key_class is first.key_class
    if first.key_class is KeyClass.DRIFTED:
        assert mysql is not None
        assert redis is not None
        assert redis.seq == mysql.seq
