"""Several operations in one transaction, and the mistakes one can make there."""

import threading

import pytest

from corral.api import Corral
from corral.api.operation import Resource, write
from corral.db.tx import Tx
from corral.domain.mail import ops as mail
from corral.domain.settings import ops as settings
from corral.kernel.errors import Invalid
from tests.support.invariants import check_store
from tests.support.threads import SECONDS, Racer

NAME = "mail.max_attempts"


def test_two_rooms_are_changed_together(store: Corral) -> None:
    with store.transaction() as tx:
        letter = mail.put(tx, "agent:ada", "hello")
        settings.set_value(tx, NAME, 3)
    assert store.mail.get(letter.id).body == "hello"
    assert store.settings.get(NAME).value == 3
    assert [event.verb for event in store.events.after().items] == ["put", "set"]
    check_store(store)


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_takes_back_what_was_done_to_both_rooms(
    store: Corral, error: type[BaseException]
) -> None:
    def change_both_and_fail() -> None:
        with store.transaction() as tx:
            mail.put(tx, "agent:ada", "hello")
            settings.set_value(tx, NAME, 3)
            raise error

    with pytest.raises(error):
        change_both_and_fail()
    _nothing_was_changed(store)
    store.mail.put("agent:ada", "the store is free again")


def test_a_refusal_inside_takes_back_what_was_done_before_it(store: Corral) -> None:
    def put_and_set_nonsense() -> None:
        with store.transaction() as tx:
            mail.put(tx, "agent:ada", "hello")
            settings.set_value(tx, NAME, "many")

    with pytest.raises(Invalid):
        put_and_set_nonsense()
    _nothing_was_changed(store)


def _nothing_was_changed(store: Corral) -> None:
    assert store.mail.list().items == []
    assert store.settings.get(NAME).scope == "default"
    assert store.events.after().items == []
    check_store(store)


def test_others_see_nothing_of_a_transaction_before_it_ends(store: Corral) -> None:
    with store.transaction() as tx:
        mail.put(tx, "agent:ada", "hello")
        assert Racer(store.mail.list).result().items == []
        assert Racer(store.events.after).result().items == []
    assert len(store.mail.list().items) == 1


def test_all_that_a_transaction_writes_has_one_time(store: Corral) -> None:
    with store.transaction() as tx:
        first = mail.put(tx, "agent:ada", 1)
        store._database.clock.advance(50)
        second = mail.put(tx, "agent:ada", 2)
    assert first.created_at == second.created_at


def test_a_write_of_the_library_inside_a_transaction_is_refused(store: Corral) -> None:
    with store.transaction() as tx:
        mail.put(tx, "agent:ada", "kept")
        with pytest.raises(RuntimeError, match="open transaction"):
            store.mail.put("agent:ada", "from inside")
        with pytest.raises(RuntimeError, match="open transaction"), store.transaction():
            pass
    assert [letter.body for letter in store.mail.list().items] == ["kept"]


def test_an_operation_that_calls_the_library_is_told_so_instead_of_waiting_for_itself(
    store: Corral,
) -> None:
    def put_and_put(tx: Tx) -> None:
        mail.put(tx, "agent:ada", "by the operation")
        store.mail.put("agent:ada", "by the library")

    class Wrong(Resource):
        put_twice = write(put_and_put)

    caller = Racer(Wrong(store._database).put_twice).join()
    assert isinstance(caller.error, RuntimeError)
    assert "open transaction" in str(caller.error)
    assert store.mail.list().items == []
    store.mail.put("agent:ada", "the store is free again")


def test_another_thread_may_write_while_one_is_told_of_its_mistake(store: Corral) -> None:
    entered, refused = threading.Event(), threading.Event()

    def wrong() -> None:
        with store.transaction():
            entered.set()
            with pytest.raises(RuntimeError):
                store.mail.put("agent:ada", "from inside")
            refused.set()

    first = Racer(wrong)
    assert entered.wait(SECONDS)
    second = Racer(lambda: store.mail.put("agent:ada", "from outside"))
    assert refused.wait(SECONDS)
    first.result()
    second.result()
    assert [letter.body for letter in store.mail.list().items] == ["from outside"]


def test_the_schema_version_can_be_asked_while_others_read(store: Corral) -> None:
    def ask_while_reading(tx: Tx) -> int:
        return Racer(store.db.schema_version).result()

    assert store._database.read(ask_while_reading) == store.db.schema_version()
