"""Sessions compared with a model of plain lists, under random operations."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from corral.kernel.errors import CorralError, IllegalMove, Invalid
from tests.properties.state_machine import (
    FreshUrl,
    StoreMachine,
    run_machine,
    while_it_is_made_short,
)
from tests.support.store import walk

AGENTS = ["ada", "ben", "eve"]
chance = st.integers(0, 1_000)


@dataclass
class Passed:
    """A hand-off, as the model remembers it."""

    giver: str
    taker: str
    at: int
    policy: str
    last: int
    note: str | None


@dataclass
class Talk:
    """The model of a session: a list of its own and inherited turns."""

    said: list[tuple[str, str, str | None]] = field(default_factory=list)
    agent: str = "ada"
    open: bool = True
    cleared: int = 0
    force: Passed | None = None
    passed: list[Passed] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    pointer: str | None = None

    def given(self) -> list[str]:
        behind = self.cleared
        if self.force is not None:
            skipped = {
                "all": 0,
                "last": self.force.at - self.force.last,
                "summary": self.force.at,
            }[self.force.policy]
            behind = max(skipped, self.cleared)
        return [content for _, content, _ in self.said[behind:]]


class SessionsMachine(StoreMachine):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.talks: dict[str, Talk] = {}
        self.said = 0

    @initialize()
    def crew(self) -> None:
        self.ids = {name: self.store.agents.create(name).id for name in AGENTS}
        self.names = {id: name for name, id in self.ids.items()}

    def pick(self, n: int) -> tuple[str, Talk]:
        return list(self.talks.items())[n % len(self.talks)]

    def closed(self, talk: Talk) -> type[CorralError] | None:
        return None if talk.open else IllegalMove

    @rule(agent=st.sampled_from(AGENTS))
    def open(self, agent: str) -> None:
        self.talks[self.store.sessions.open(agent).id] = Talk(agent=agent)

    @precondition(lambda self: self.talks)
    @rule(
        n=chance,
        role=st.sampled_from(["user", "assistant"]),
        key=st.none() | st.sampled_from(["a", "b", "c"]),
    )
    def append(self, n: int, role: str, key: str | None) -> None:
        id, talk = self.pick(n)
        self.said += 1
        content = f"text {self.said}"

        def call() -> Any:
            return self.store.sessions.append(id, role, content, key=key)

        if key in talk.keys:
            assert call().number == talk.keys[str(key)]
            return
        if self.refused(self.closed(talk), call):
            return
        talk.said.append((role, content, talk.agent if role == "assistant" else None))
        turn = call()
        assert turn.number == len(talk.said)
        if key is not None:
            talk.keys[key] = turn.number

    @precondition(lambda self: self.talks)
    @rule(n=chance, count=st.integers(1, 4))
    def append_many(self, n: int, count: int) -> None:
        id, talk = self.pick(n)
        new = [{"role": "user", "content": f"many {self.said} {i}"} for i in range(count)]
        self.said += 1

        def call() -> Any:
            return self.store.sessions.append_many(id, new)

        if self.refused(self.closed(talk), call):
            return
        call()
        talk.said += [("user", turn["content"], None) for turn in new]

    @precondition(lambda self: self.talks)
    @rule(
        n=chance,
        to=st.sampled_from(AGENTS),
        policy=st.sampled_from(["all", "last", "summary"]),
        last=st.integers(1, 5),
        note=st.none() | st.just("note"),
    )
    def handoff(self, n: int, to: str, policy: str, last: int, note: str | None) -> None:
        id, talk = self.pick(n)

        def call() -> Any:
            return self.store.sessions.handoff(
                id,
                to,
                policy,
                note,
                last=last if policy == "last" else None,
                summary="so far" if policy == "summary" else None,
            )

        if self.refused(self.closed(talk), call):
            return
        made = call()
        passed = Passed(talk.agent, to, len(talk.said), policy, last, note)
        talk.passed.append(passed)
        talk.force, talk.agent, talk.pointer = passed, to, None
        assert (made.number, made.at_turn) == (len(talk.passed), len(talk.said))
        assert self.names[made.from_agent_id] == passed.giver

    @precondition(lambda self: self.talks)
    @rule(n=chance)
    def clear(self, n: int) -> None:
        id, talk = self.pick(n)
        if self.refused(self.closed(talk), lambda: self.store.sessions.clear(id)):
            return
        self.store.sessions.clear(id)
        talk.cleared, talk.force, talk.state, talk.pointer = len(talk.said), None, {}, None

    @precondition(lambda self: self.talks)
    @rule(n=chance, at=st.integers(-1, 12))
    def fork(self, n: int, at: int) -> None:
        id, talk = self.pick(n)
        wrong = None if 0 <= at <= len(talk.said) else Invalid
        if self.refused(wrong, lambda: self.store.sessions.fork(id, at)):
            return
        made = self.store.sessions.fork(id, at)
        later = [passed for passed in talk.passed if passed.at > at]
        force = talk.force if talk.force and talk.force.at <= at else None
        self.talks[made.id] = Talk(
            said=talk.said[:at],
            agent=later[0].giver if later else talk.agent,
            cleared=talk.cleared if talk.cleared <= at else 0,
            force=force,
            passed=[force] if force else [],
        )

    @precondition(lambda self: self.talks)
    @rule(n=chance, name=st.sampled_from("xy"), value=st.none() | st.integers(0, 3))
    def remember(self, n: int, name: str, value: int | None) -> None:
        id, talk = self.pick(n)

        def call() -> Any:
            return self.store.sessions.set_state(id, name, value)

        if self.refused(self.closed(talk), call):
            return
        call()
        talk.state.pop(name, None)
        if value is not None:
            talk.state[name] = value

    @precondition(lambda self: self.talks)
    @rule(n=chance)
    def point(self, n: int) -> None:
        id, talk = self.pick(n)
        talk.pointer = f"p{self.said}"
        self.store.sessions.set_provider_session(id, "claude", talk.pointer)

    @precondition(lambda self: self.talks)
    @rule(n=chance)
    def close_or_reopen(self, n: int) -> None:
        id, talk = self.pick(n)
        sessions = self.store.sessions
        wrong, right = (
            (sessions.reopen, sessions.close)
            if talk.open
            else (
                sessions.close,
                sessions.reopen,
            )
        )
        assert self.refused(IllegalMove, lambda: wrong(id))
        right(id)
        talk.open = not talk.open

    @invariant()
    def every_session_is_what_the_model_says(self) -> None:
        sessions = self.store.sessions
        for id, talk in self.talks.items():
            found = sessions.get(id)
            assert self.names[str(found.agent_id)] == talk.agent
            assert (found.turns, found.state == "open") == (len(talk.said), talk.open)
            assert (found.provider_session, sessions.state(id)) == (talk.pointer, talk.state)
            read = [
                (turn.role, turn.content, self.names.get(turn.agent_id or ""))
                for turn in walk(lambda id=id, **given: sessions.turns(id, **given), limit=3)
            ]
            assert read == talk.said
            back = walk(lambda id=id, **given: sessions.turns(id, newest=True, **given), limit=4)
            assert [turn.number for turn in back] == list(range(len(talk.said), 0, -1))
            context = sessions.context(id)
            assert [turn.content for turn in context.turns] == talk.given()
            assert context.note == (talk.force.note if talk.force else None)


@while_it_is_made_short
def test_sessions_match_a_list_model(fresh_url: FreshUrl) -> None:
    run_machine(SessionsMachine, fresh_url, stories=25, steps=25)
