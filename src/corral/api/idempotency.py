"""Idempotent calls: a repeated call with the same key returns the first result.

An operation and its stored result are one transaction: both are committed, or neither. A method
that composes several operations has no such transaction. It is recorded as begun, executed, and
then its result is stored. If the process dies in between, the outcome is unknown, and a repeated
call is refused with that reason.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from corral.api.operation import Operation, Resource, find_operation
from corral.api.permissions import CheckedResource
from corral.db.tx import Tx
from corral.domain.idempotency import ops as idempotency
from corral.kernel.errors import CorralError


class IdempotencyKey(NamedTuple):
    """The caller, its key for the call, and a fingerprint of the arguments."""

    token_id: str
    key: str
    fingerprint: str


def call_with_key(
    resource: Resource | CheckedResource,
    verb: str,
    arguments: Mapping[str, Any],
    *,
    key: IdempotencyKey,
    encode: Callable[[Any], bytes],
    unless: bytes | None = None,
) -> bytes:
    """Call an operation once per key; returns the JSON result of this or the first call.

    Errors, and the result `unless`, are not stored: nothing was done, so the call may be repeated.
    """
    if isinstance(resource, CheckedResource):
        # Inside a run: check first, because the code below calls the operation without checks.
        resource, arguments = resource.check_call(verb, arguments)
    assert isinstance(resource, Resource)
    operation = find_operation(type(resource), verb)
    database = resource._database
    if isinstance(operation, Operation):

        def call_and_store(tx: Tx) -> bytes:
            before = idempotency.begin(tx, *key)
            if before is not None:
                return _stored_response(before.response)
            body = encode(operation.function(tx, **arguments))
            idempotency.store_response(tx, key.token_id, key.key, body.decode())
            return body

        return database.write(call_and_store, durable=operation.durable, repeatable=True)
    before = database.write(lambda tx: idempotency.begin(tx, *key))
    if before is not None:
        return _stored_response(before.response)
    try:
        body = encode(getattr(resource, verb)(**arguments))
    except CorralError:
        database.write(lambda tx: idempotency.discard(tx, key.token_id, key.key), repeatable=True)
        raise
    if body == unless:
        database.write(lambda tx: idempotency.discard(tx, key.token_id, key.key), repeatable=True)
        return body
    text = body.decode()
    database.write(
        lambda tx: idempotency.store_response(tx, key.token_id, key.key, text), repeatable=True
    )
    return body


def _stored_response(response: Any) -> bytes:
    assert response is not None, "begin() refuses a call whose result is unknown"
    return bytes(response)
