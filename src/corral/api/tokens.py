"""Operations of `store.tokens`."""

from pathlib import Path

from corral.api.operation import Resource, read, write
from corral.domain.tokens import ops
from corral.services.tokens import check_token, create_token, ensure_token_file


class Tokens(Resource):
    """Access tokens for the HTTP API. The store has only hashes of their secrets."""

    noun = "token"

    create = write(create_token, durable=True)
    check = read(check_token)
    get = read(ops.get)
    list = read(ops.list_tokens, mode="one")
    revoke = write(ops.revoke, durable=True)
    record_use = write(ops.record_use, mode="one", repeatable=True)

    def ensure_file(self, path: Path, *, name: str) -> str:
        """Return the secret in a private file; creates a token of full scope if necessary.

        A new token replaces one that is missing, expired or revoked, or whose file other users
        could read. Idempotent.
        """
        return ensure_token_file(self._database, path, name=name)
