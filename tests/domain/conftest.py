import pytest

from corral.api import Corral
from tests.support.fake_channels import Runner
from tests.support.fake_sandbox_agent import Talk


@pytest.fixture
def runner(store: Corral) -> Runner:
    """Runs what is queued, without any process."""
    return Runner(store)


@pytest.fixture
def talk(store: Corral, kinds: None) -> Talk:
    """A talk with an agent in a box."""
    return Talk(store)
