"""A token lets a program or a browser call from outside: a secret, and what it may be used for.

Only the hash of the secret is stored. A secret has 256 random bits, so a plain hash is as good as a
slow one: nothing can be tried out.
"""

from enum import StrEnum

import msgspec

from corral.kernel.states import Moves, move


class TokenState(StrEnum):
    ACTIVE = "active"  # it opens what its scope says, until it expires
    REVOKED = "revoked"  # it opens nothing any more


MOVES = Moves(
    "token",
    TokenState,
    begin="create",
    initial=TokenState.ACTIVE,
    verbs={"revoke": move(TokenState.ACTIVE, to=TokenState.REVOKED)},
)

FULL, READ = "full", "read"
PREFIX = "crl_"  # so that a secret is known by its shape wherever it is printed


class Token(msgspec.Struct, frozen=True):
    id: str
    name: str
    state: TokenState
    scope: str
    """full, read, or agent:ID."""
    project_id: str | None
    """The one project that an agent's token is for; None: any."""
    created_at: int
    created_by: str
    expires_at: int | None
    used_at: int | None
    """About when it was last used, to the minute."""
    ended_at: int | None

    @property
    def agent_id(self) -> str | None:
        """The one agent that it is for."""
        return self.scope.removeprefix("agent:") if self.scope.startswith("agent:") else None


class NewToken(msgspec.Struct, frozen=True):
    """A token that was just made, with its secret: it is shown now and never again."""

    token: Token
    value: str
