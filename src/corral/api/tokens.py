"""Operations of `store.tokens`."""

from pathlib import Path

from corral.api.operation import Resource, operation, read, write
from corral.api.policy import USES_FILES
from corral.domain.tokens import ops
from corral.services.tokens import check_token, create_token, ensure_token_file


class Tokens(Resource):
    """Access tokens for the HTTP API. The store has only hashes of their secrets."""

    noun = "token"

    create = write(create_token, durable=True, returns_secret=True, people_only=True)
    check = read(check_token, local="it is internal to the HTTP API")
    get = read(ops.get)
    list = read(ops.list_tokens, mode="one")
    revoke = write(ops.revoke, durable=True, people_only=True)
    record_use = write(
        ops.record_use, mode="one", repeatable=True, local="it is internal to the HTTP API"
    )

    @operation(local=USES_FILES, people_only=True)
    def ensure_file(self, path: Path, *, name: str) -> str:
        """Return the secret in a private file; creates a token of full scope if necessary.

        A new token replaces one that is missing, expired or revoked, or whose file other users
        could read. Idempotent.
        """
        return ensure_token_file(self._database, path, name=name)
