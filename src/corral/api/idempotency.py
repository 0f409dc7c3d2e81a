"""Idempotent calls: a repeated call with the same key returns the first result.

A read or a write and its stored result are one transaction: both are committed, or neither. A
workflow has several transactions. It is recorded as begun, performed, and then its result is
stored. If the process dies in between, or the workflow fails after one of its transactions was
committed, the outcome is unknown, and a repeated call is refused with that reason.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, cast

from corral.api.executor import LocalExecutor
from corral.api.operation import Operation, Resource, find_operation
from corral.db.database import Database
from corral.db.tx import Tx
from corral.domain.idempotency import ops as idempotency
from corral.kernel.errors import CorralError, NotYet

R = TypeVar("R")


class IdempotencyKey(NamedTuple):
    """The caller, its key for the call, and a fingerprint of the arguments."""

    token_id: str
    key: str
    fingerprint: str


def call_with_key(
    resource: Resource,
    verb: str,
    arguments: Mapping[str, Any],
    *,
    key: IdempotencyKey,
    encode: Callable[[Any], bytes],
    unless: bytes | None = None,
) -> bytes:
    """Call an operation once per key; returns the JSON result of this or the first call.

    Errors, and the result `unless`, are not stored. After an error the call may be repeated with
    the same key, unless a workflow had committed a part of its changes: the repeated call then
    raises Conflict.
    """
    operation = find_operation(type(resource), verb)
    assert operation is not None
    resource, arguments = resource._executor.authorize(resource, operation, arguments)
    if operation.kind == "workflow":
        return _perform_workflow(resource, operation, arguments, key, encode, unless)
    return _perform_transaction(resource._database, operation, arguments, key, encode)


def _perform_transaction(
    database: Database,
    operation: Operation[..., Any],
    arguments: Mapping[str, Any],
    key: IdempotencyKey,
    encode: Callable[[Any], bytes],
) -> bytes:
    def call_and_store(tx: Tx) -> bytes | CorralError:
        before = idempotency.begin(tx, *key)
        if before is not None:
            return _stored_response(before.response)
        result = operation.function(tx, **arguments)
        if operation.after_commit is not None:
            try:
                result = operation.after_commit(result)
            except CorralError as error:  # the call is refused, but its changes are committed
                idempotency.discard(tx, key.token_id, key.key)
                return error
        body = encode(result)
        idempotency.store_response(tx, key.token_id, key.key, body.decode())
        return body

    body = database.write(call_and_store, durable=operation.durable, repeatable=True)
    if isinstance(body, CorralError):
        raise body
    return body


def _perform_workflow(
    resource: Resource,
    operation: Operation[..., Any],
    arguments: Mapping[str, Any],
    key: IdempotencyKey,
    encode: Callable[[Any], bytes],
    unless: bytes | None,
) -> bytes:
    database = resource._database
    before = database.write(lambda tx: idempotency.begin(tx, *key))
    if before is not None:
        return _stored_response(before.response)

    def discard(tx: Tx) -> None:
        idempotency.discard(tx, key.token_id, key.key)

    watched = CommitWatch(database)
    executor = LocalExecutor(cast(Database, watched), resource._executor.caller)
    watching = type(resource)(executor, resource._attribute)
    try:
        body = encode(operation.function(watching, **arguments))
    except Exception as error:
        if isinstance(error, NotYet) or not watched.has_committed:
            database.write(discard, repeatable=True)
        raise
    if body == unless:
        database.write(discard, repeatable=True)
        return body
    text = body.decode()
    database.write(
        lambda tx: idempotency.store_response(tx, key.token_id, key.key, text), repeatable=True
    )
    return body


class CommitWatch:
    """A view of a database that notices whether it has committed a change, on any thread."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.has_committed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, work: Callable[[Tx], R], **options: Any) -> R:
        try:
            result = self._database.write(work, **options)
        except CorralError as error:
            # The connection broke during the commit.
            self.has_committed |= error.details.get("reason") == "unknown_outcome"
            raise
        self.has_committed = True
        return result

    @contextmanager
    def transaction(self) -> Iterator[Tx]:
        with self._database.transaction() as tx:
            yield tx
        self.has_committed = True


def _stored_response(response: Any) -> bytes:
    assert response is not None, "begin() refuses a call whose result is unknown"
    return bytes(response)
