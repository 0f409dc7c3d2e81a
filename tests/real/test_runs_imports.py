"""Conversations without Corral are imported once; those of Corral's runs are not duplicated."""

from corral.adapters.providers import registry
from corral.adapters.providers.provider import LaunchRequest
from corral.domain.runs.model import RunState
from tests.real.home import USAGE, AgentKind, RealHome
from tests.real.machine import program, steps


def run_cli(home: RealHome, kind: AgentKind, *items: dict[str, object]) -> None:
    """Run the CLI without Corral."""
    provider = registry.get_provider(kind.name)
    approvals = ("all",) if kind.name == "codex" else ("edit", "run")
    ask = LaunchRequest(steps(*items), approvals=approvals)
    result = home.machine.run(provider, provider.build_command(ask, program(kind.name)))
    assert result.code == 0, result


def test_conversation_of_a_person_is_imported_once(home: RealHome, kind: AgentKind) -> None:
    first = kind.write("a.txt", text="I write it.", usage=USAGE)
    run_cli(home, kind, first, {"text": "It is written."})
    report = home.json("import", kind.name, "--json")
    assert (report["files"], report["sessions"], report["own"]) == (1, 1, 0)
    assert report["turns"] == 5
    assert home.charged("all") == kind.used()
    with home.store() as store:
        (session,) = store.sessions.list().items
        turns = store.sessions.turns(session.id).items
        (project,) = store.projects.list().items
    assert (session.provider, session.project_id) == (kind.name, project.id)
    assert project.dir == str(home.work)
    roles = [turn.role.value for turn in turns]
    assert roles == ["user", "assistant", "assistant", "tool", "assistant"]

    second = home.json("import", kind.name, "--json")
    assert (second["sessions"], second["turns"], second["charges"]) == (0, 0, 0)
    assert home.charged("all") == kind.used()

    # Continued by Corral, it is still one conversation.
    result = home.json("resume", "-d", "--json", session.id, steps({"text": "And more."}))
    after = home.wait_for_end(result["id"])
    assert after.state is RunState.COMPLETED, home.log(after)
    assert home.texts(after) == ["I write it.", "It is written.", "And more."]
    assert home.charged("all") == kind.used()
    home.json("import", kind.name, "--json")
    assert home.charged("all") == kind.used()
    assert home.texts(after) == ["I write it.", "It is written.", "And more."]


def test_conversation_of_a_run_is_not_imported_again(home: RealHome, kind: AgentKind) -> None:
    first = kind.write("a.txt", text="I write it.", usage=USAGE)
    run = home.start_agent(kind.name, steps(first, {"text": "It is written."}), *kind.approvals)
    ended = home.wait_for_end(run.id)
    assert ended.state is RunState.COMPLETED, home.log(run)
    before = home.turns(ended)
    report = home.json("import", kind.name, "--json")
    assert (report["own"], report["turns"], report["charges"]) == (1, 0, 0)
    assert home.turns(ended) == before
    assert home.charged("all") == home.charged(f"run:{run.id}") == kind.used()
    with home.store() as store:
        assert len(store.sessions.list().items) == 1
