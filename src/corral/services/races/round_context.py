"""The arguments that all steps of a round share."""

from typing import NamedTuple

from corral.domain.races.model import Race, Round


class RoundContext(NamedTuple):
    """A race and one of its rounds, for the driver that holds the lease of the round."""

    race: Race
    round: Round
    """The round with its attempts as last read."""
    lease: Round
    """The round as acquired, with the fencing token of the lease."""
