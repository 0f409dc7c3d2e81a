"""A call that is made once, however often it is repeated: its caller names it by a key.

An operation and its answer are one transaction, so either both are kept or neither, whoever dies
when. A method that composes several operations has no such transaction: it is begun, done, and
then its answer kept; cut off in between, its outcome is not known, and that is what a repeated call
is told.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from corral.api.operation import Operation, Room
from corral.db.tx import Tx
from corral.domain.idempotency import ops as answers
from corral.kernel.errors import CorralError


class Key(NamedTuple):
    """Who calls, how they name the call, and a fingerprint of what they ask for."""

    token_id: str
    key: str
    fingerprint: str


def once(
    room: Room,
    verb: str,
    arguments: Mapping[str, Any],
    *,
    key: Key,
    encode: Callable[[Any], bytes],
    unless: bytes | None = None,
) -> bytes:
    """The answer as JSON: of this call, or of the first one under this key.

    What was refused is not kept, nor is the answer `unless`: nothing was done, and the same call
    may be made again.
    """
    # The declaration itself, also of a base class: getattr would bind it to the room.
    operation = next(vars(kind)[verb] for kind in type(room).__mro__ if verb in vars(kind))
    database = room._database
    if isinstance(operation, Operation):

        def both(tx: Tx) -> bytes:
            before = answers.begin(tx, *key)
            if before is not None:
                return _body(before.body)
            body = encode(operation.function(tx, **arguments))
            answers.keep(tx, key.token_id, key.key, body.decode())
            return body

        return database.write(both, durable=operation.durable, repeatable=True)
    before = database.write(lambda tx: answers.begin(tx, *key))
    if before is not None:
        return _body(before.body)
    try:
        body = encode(getattr(room, verb)(**arguments))
    except CorralError:
        database.write(lambda tx: answers.drop(tx, key.token_id, key.key), repeatable=True)
        raise
    if body == unless:
        database.write(lambda tx: answers.drop(tx, key.token_id, key.key), repeatable=True)
        return body
    told = body.decode()
    database.write(lambda tx: answers.keep(tx, key.token_id, key.key, told), repeatable=True)
    return body


def _body(kept: Any) -> bytes:
    assert kept is not None, "begin refuses a call without an answer"
    return bytes(kept)
