"""An API token is a secret with a scope, for programs and browsers that call from outside.

Only the hash of the secret is stored. A secret has 256 random bits, so a fast hash is sufficient:
guessing is infeasible.
"""

from enum import StrEnum

import msgspec

from corral.kernel.states import TransitionTable, allow


class TokenState(StrEnum):
    ACTIVE = "active"  # accepted until it expires
    REVOKED = "revoked"  # rejected


TRANSITIONS = TransitionTable(
    "token",
    TokenState,
    create_verb="create",
    initial=TokenState.ACTIVE,
    verbs={"revoke": allow(TokenState.ACTIVE, to=TokenState.REVOKED)},
)

FULL, READ = "full", "read"
PREFIX = "crl_"  # so that redaction recognizes a token wherever it is printed


class Token(msgspec.Struct, frozen=True):
    """A token without its secret."""

    id: str
    name: str
    state: TokenState
    scope: str
    """full, read, or agent:ID."""
    project_id: str | None
    """The project that an agent's token is limited to; None: any."""
    created_at: int
    created_by: str
    expires_at: int | None
    used_at: int | None
    """The time of the last use, with a resolution of a minute."""
    ended_at: int | None

    @property
    def agent_id(self) -> str | None:
        """The agent that the token is limited to."""
        return self.scope.removeprefix("agent:") if self.scope.startswith("agent:") else None


class NewToken(msgspec.Struct, frozen=True):
    """A new token with its secret, which is shown only once."""

    token: Token
    value: str
