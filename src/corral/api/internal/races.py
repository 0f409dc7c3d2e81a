"""Operations of `store.internal.races`."""

from corral.api.operation import Resource, operation
from corral.services.races.progress import advance_open_races


class InternalRaces(Resource):
    """The progress of races, for the race driver."""

    noun = "race"

    @operation()
    def advance_open(self) -> int:
        """Advance every race of this machine; returns the number of rounds that changed."""
        return advance_open_races(self._database)
