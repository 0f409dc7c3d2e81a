"""Operations of `store.internal.races`."""

from concurrent.futures import ThreadPoolExecutor

from corral.adapters.processes import process
from corral.api.operation import Resource, operation, read
from corral.domain.races import round_steps
from corral.domain.races.model import Round
from corral.services.races import driver

MAX_CONCURRENT = 4


class InternalRaces(Resource):
    """The progress of races, for the race driver."""

    noun = "race"

    _open_rounds = read(round_steps.list_active_rounds, mode="one")

    @operation()
    def advance_open(self) -> int:
        """Advance every race of this machine; returns the number of rounds that changed."""
        current = self._open_rounds(process.host())
        if not current:
            return 0
        with ThreadPoolExecutor(min(MAX_CONCURRENT, len(current))) as pool:
            return sum(pool.map(self._advance, current))

    def _advance(self, round: Round) -> bool:
        return driver.advance(self._database, round.id)
