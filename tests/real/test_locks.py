"""Hooks called by real agent CLIs: an edit of a locked file is rejected, others are recorded."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

import corral
from corral.adapters.providers.facts import TurnFact
from corral.adapters.providers.provider import LaunchRequest
from corral.api import Corral
from tests.real.conftest import Agent
from tests.real.machine import Machine, steps


@pytest.fixture
def store(machine: Machine) -> Iterator[Corral]:
    """A store in which ada holds `held.txt` of the folder in which the CLI works as ben."""
    path = machine.home.parent / "corral.db"
    machine.env |= {"CORRAL_STORE": f"sqlite:///{path}", "CORRAL_AGENT": "ben"}
    if "PYTHONPATH" in os.environ:  # so that the hook runs this Corral
        machine.env["PYTHONPATH"] = os.environ["PYTHONPATH"]
    with corral.open(Path(path), actor="user:tester") as store:
        project = store.projects.register(machine.work)
        store.locks.acquire(project.id, "held.txt", "ada", reason="edit", ttl_ms=3_600_000)
        yield store


def test_claude_edit_of_a_locked_file_is_rejected_and_another_recorded(
    claude: Agent, machine: Machine, store: Corral
) -> None:
    store.locks.install(machine.work, targets=["claude"])

    def write(name: str) -> dict[str, object]:
        return {"tool": "Write", "args": {"file_path": f"{machine.work}/{name}", "content": "hi"}}

    prompt = steps(write("held.txt"), write("free.txt"), {"text": "done"})
    result = machine.run(
        claude.provider, claude.build_command(LaunchRequest(prompt, approvals=("edit",)))
    )
    assert result.code == 0, result
    assert not (machine.work / "held.txt").exists()
    assert (machine.work / "free.txt").read_text() == "hi"
    answers = [turn for turn in result.of(TurnFact) if turn.role == "tool"]
    assert [turn.is_error for turn in answers] == [True, False]
    assert "agent:ada holds held.txt" in answers[0].content
    (touch,) = store.locks.touches(str(machine.work)).items
    assert (touch.path, touch.owner) == ("free.txt", "agent:ben")


@pytest.mark.parametrize("by_option", [False, True], ids=["installed", "option"])
def test_codex_patch_is_rejected_once_its_hooks_are_trusted(
    codex: Agent, machine: Machine, store: Corral, by_option: bool
) -> None:
    if not by_option:
        store.locks.install(machine.work, targets=["codex"])
        # Codex reads the files of a project only if the user trusts the project.
        config = machine.home / ".codex/config.toml"
        trust = f'[projects."{machine.work}"]\ntrust_level = "trusted"\n'
        config.write_text(f"{config.read_text()}\n{trust}")

    def patch(name: str) -> dict[str, object]:
        text = f"*** Begin Patch\n*** Add File: {name}\n+hi\n*** End Patch"
        return {"tool": "exec_command", "args": {"cmd": f"apply_patch <<'EOF'\n{text}\nEOF"}}

    prompt = steps(patch("held.txt"), patch("free.txt"), {"text": "done"})
    start = codex.build_command(LaunchRequest(prompt, approvals=("all",), hooks=by_option))
    index = start.args.index("exec") + 1
    trusted = ["--dangerously-bypass-hook-trust", "--skip-git-repo-check"]
    trusted = [argument for argument in trusted if argument not in start.args]
    start = replace(start, args=[*start.args[:index], *trusted, *start.args[index:]])
    result = machine.run(codex.provider, start)
    assert result.code == 0, result
    assert (machine.work / "free.txt").exists(), result
    assert not (machine.work / "held.txt").exists(), result
    assert b"agent:ada holds held.txt" in result.err, result


def test_claude_respects_locks_by_hooks_passed_at_its_start(
    claude: Agent, machine: Machine, store: Corral
) -> None:
    def write(name: str) -> dict[str, object]:
        return {"tool": "Write", "args": {"file_path": f"{machine.work}/{name}", "content": "hi"}}

    ask = LaunchRequest(
        steps(write("held.txt"), write("free.txt"), {"text": "done"}), approvals=("edit",)
    )
    result = machine.run(claude.provider, claude.build_command(replace(ask, hooks=True)))
    assert result.code == 0, result
    assert not (machine.work / "held.txt").exists()
    assert (machine.work / "free.txt").read_text() == "hi"
