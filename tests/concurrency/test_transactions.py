"""Several operations in one transaction, rollback, and rejected nested writes."""

import threading

import pytest

from corral.api import Corral
from corral.api.operation import Resource, write
from corral.db.tx import Tx
from corral.domain.mail import ops as mail
from corral.domain.settings import ops as settings
from corral.kernel.errors import Invalid
from tests.support.invariants import check_store
from tests.support.store import read
from tests.support.threads import SECONDS, Racer

NAME = "mail.max_attempts"


def test_transaction_changes_two_concepts_atomically(store: Corral) -> None:
    with store.transaction() as tx:
        letter = mail.put(tx, "agent:ada", "hello")
        settings.set_value(tx, NAME, 3)
    assert store.mail.get(letter.id).body == "hello"
    assert store.settings.get(NAME).value == 3
    assert [event.verb for event in store.events.after().items] == ["put", "set"]
    check_store(store)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_error_rolls_back_changes_of_both_concepts(
    store: Corral, error: type[BaseException]
) -> None:
    def change_both_and_fail() -> None:
        with store.transaction() as tx:
            mail.put(tx, "agent:ada", "hello")
            settings.set_value(tx, NAME, 3)
            raise error

    with pytest.raises(error):
        change_both_and_fail()
    _check_unchanged(store)
    store.mail.put("agent:ada", "after the rollback")


def test_rejected_operation_rolls_back_the_transaction(store: Corral) -> None:
    def put_and_set_invalid() -> None:
        with store.transaction() as tx:
            mail.put(tx, "agent:ada", "hello")
            settings.set_value(tx, NAME, "many")

    with pytest.raises(Invalid):
        put_and_set_invalid()
    _check_unchanged(store)


def _check_unchanged(store: Corral) -> None:
    assert store.mail.list().items == []
    assert store.settings.get(NAME).scope == "default"
    assert store.events.after().items == []
    check_store(store)


def test_uncommitted_changes_are_invisible_to_others(store: Corral) -> None:
    with store.transaction() as tx:
        mail.put(tx, "agent:ada", "hello")
        assert Racer(store.mail.list).result().items == []
        assert Racer(store.events.after).result().items == []
    assert len(store.mail.list().items) == 1


def test_all_writes_of_a_transaction_have_one_timestamp(store: Corral) -> None:
    with store.transaction() as tx:
        first = mail.put(tx, "agent:ada", 1)
        store._database.clock.advance(50)
        second = mail.put(tx, "agent:ada", 2)
    assert first.created_at == second.created_at


def test_nested_write_inside_a_transaction_is_rejected(store: Corral) -> None:
    with store.transaction() as tx:
        mail.put(tx, "agent:ada", "kept")
        with pytest.raises(RuntimeError, match="open transaction"):
            store.mail.put("agent:ada", "from inside")
        with pytest.raises(RuntimeError, match="open transaction"), store.transaction():
            pass
    assert [letter.body for letter in store.mail.list().items] == ["kept"]


def test_operation_that_calls_the_api_fails_instead_of_deadlocking(
    store: Corral,
) -> None:
    def put_and_put(tx: Tx) -> None:
        mail.put(tx, "agent:ada", "inner")
        store.mail.put("agent:ada", "nested")

    class NestedWriter(Resource):
        put_twice = write(put_and_put)

    caller = Racer(NestedWriter(store._executor).put_twice).join()
    assert isinstance(caller.error, RuntimeError)
    assert "open transaction" in str(caller.error)
    assert store.mail.list().items == []
    store.mail.put("agent:ada", "after the rollback")


def test_rejected_nested_write_does_not_block_other_threads(store: Corral) -> None:
    entered, refused = threading.Event(), threading.Event()

    def write_nested() -> None:
        with store.transaction():
            entered.set()
            with pytest.raises(RuntimeError):
                store.mail.put("agent:ada", "from inside")
            refused.set()

    first = Racer(write_nested)
    assert entered.wait(SECONDS)
    second = Racer(lambda: store.mail.put("agent:ada", "from outside"))
    assert refused.wait(SECONDS)
    first.result()
    second.result()
    assert [letter.body for letter in store.mail.list().items] == ["from outside"]


def test_schema_version_can_be_read_during_a_read(store: Corral) -> None:
    def ask_while_reading(tx: Tx) -> int:
        return Racer(store.db.schema_version).result()

    assert read(store, ask_while_reading) == store.db.schema_version()
