"""The command of an attempt, built without starting a process."""

from pathlib import Path

import pytest

from corral.supervisor.launch_plan import LaunchPlan
from tests.support.home import Home
from tests.support.run_factories import queued


@pytest.mark.parametrize("provider", ["claude", "copilot", "gemini", "qwen", "scripted"])
def test_a_new_conversation_has_its_id_before_the_agent_starts(
    home: Home, tmp_path: Path, provider: str
) -> None:
    """An agent that dies before its first output can then be resumed."""
    with home.store() as store:
        session = store.sessions.open(project=None, title=None, provider=provider)
        run = queued(store, provider=provider, session_id=session.id, prompt="say hello")
        launch = store.runs.get_launch(run.id)
        command = LaunchPlan(store, run, launch, tmp_path, secret=str).build_command(
            lambda *line: None, resume=False
        )
        assert command.session is not None
        assert command.session in " ".join(command.args)
        assert store.sessions.get(session.id).provider_session == command.session
