import pytest

from corral.api import Corral
from tests.support.fake_channels import Runner
from tests.support.fake_sandbox_agent import SandboxConversation


@pytest.fixture
def runner(store: Corral) -> Runner:
    """Runs what is queued, without any process."""
    return Runner(store)


@pytest.fixture
def talk(store: Corral, fake_channels: None) -> SandboxConversation:
    """A talk with an agent in a box."""
    return SandboxConversation(store)
