"""Operations of `store.internal.tokens`."""

from pathlib import Path

from corral.api.operation import Resource, operation, read, write
from corral.domain.tokens import ops
from corral.services.tokens import check_token, ensure_token_file, is_valid


class InternalTokens(Resource):
    """Authentication of requests, and the token of the daemon."""

    noun = "token"

    check = read(check_token)
    is_valid = read(is_valid)
    record_use = write(ops.record_use, mode="one", repeatable=True)

    @operation()
    def ensure_file(self, path: Path, *, name: str) -> str:
        """Return the secret in a private file; creates a token of full scope if necessary.

        A new token replaces one that is missing, expired or revoked, or whose file other users
        could read. Idempotent.
        """
        return ensure_token_file(self._database, path, name=name)
