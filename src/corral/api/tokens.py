"""Operations of `store.tokens`."""

from corral.api.operation import Resource, read, write
from corral.domain.tokens import ops
from corral.services.tokens import create_token


class Tokens(Resource):
    """Access tokens for the HTTP API. The store has only hashes of their secrets."""

    noun = "token"
    subjects = ("token",)

    create = write(create_token, durable=True, returns_secret=True, people_only=True)
    get = read(ops.get)
    list = read(ops.list_tokens, mode="one")
    revoke = write(ops.revoke, durable=True, people_only=True)
