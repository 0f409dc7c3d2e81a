"""Operations of `store.teams`."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from corral.api.operation import Resource, operation
from corral.api.policy import USES_FILES

if TYPE_CHECKING:
    from corral.services.teams import StartedMember


class Teams(Resource):
    """Teams of agents: a lead and workers that share tasks, locks and messages."""

    noun = "team"

    @operation(local=USES_FILES, people_only=True)
    def start(self, team: Mapping[str, Any], *, dir: str) -> "Sequence[StartedMember]":
        """Create or update the agents of a team, declare its tasks, and start its members.

        `team` is the content of a team file and `dir` the directory of its project. Everything but
        the start is one transaction. Idempotent: members that run already are skipped. Raises
        Invalid for a malformed team, and Refused when the program of a member is missing.
        """
        from corral.services.teams import start_team

        return start_team(self._database, team, dir)
