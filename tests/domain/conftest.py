import pytest

from corral.api import Corral
from tests.support.fake_channels import Runner
from tests.support.fake_sandbox_agent import SandboxConversation


@pytest.fixture
def runner(store: Corral) -> Runner:
    """Run queued runs without starting processes."""
    return Runner(store)


@pytest.fixture
def conversation(store: Corral, fake_channels: None) -> SandboxConversation:
    """Start a chat with a sandboxed agent."""
    return SandboxConversation(store)
