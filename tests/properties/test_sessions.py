"""Sessions, compared with a model of plain lists under random operations."""

from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule

from corral.kernel.errors import CorralError, IllegalMove, Invalid
from tests.properties.state_machine import (
    FreshUrl,
    StoreMachine,
    allow_shrinking_time,
    run_machine,
)
from tests.support.store import walk

AGENTS = ["ada", "ben", "eve"]
indexes = st.integers(0, 1_000)


@dataclass
class ModelHandoff:
    """A hand-off of the model."""

    giver: str
    taker: str
    at: int
    policy: str
    last: int
    note: str | None


@dataclass
class ModelSession:
    """The model of a session: a list of its own and inherited turns."""

    turns: list[tuple[str, str, str | None]] = field(default_factory=list)
    agent: str = "ada"
    open: bool = True
    cleared: int = 0
    last_handoff: ModelHandoff | None = None
    handoffs: list[ModelHandoff] = field(default_factory=list)
    keys: dict[str, int] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)
    pointer: str | None = None

    def context(self) -> list[str]:
        """Return the contents that an agent gets: after the last clear or hand-off."""
        start = self.cleared
        if self.last_handoff is not None:
            skipped = {
                "all": 0,
                "last": self.last_handoff.at - self.last_handoff.last,
                "summary": self.last_handoff.at,
            }[self.last_handoff.policy]
            start = max(skipped, self.cleared)
        return [content for _, content, _ in self.turns[start:]]


class SessionsMachine(StoreMachine):
    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.sessions: dict[str, ModelSession] = {}
        self.text_count = 0

    @initialize()
    def create_agents(self) -> None:
        self.ids = {name: self.store.agents.create(name).id for name in AGENTS}
        self.names = {id: name for name, id in self.ids.items()}

    def pick(self, n: int) -> tuple[str, ModelSession]:
        return list(self.sessions.items())[n % len(self.sessions)]

    def error_if_closed(self, session: ModelSession) -> type[CorralError] | None:
        return None if session.open else IllegalMove

    @rule(agent=st.sampled_from(AGENTS))
    def open(self, agent: str) -> None:
        self.sessions[self.store.sessions.open(agent).id] = ModelSession(agent=agent)

    @precondition(lambda self: self.sessions)
    @rule(
        n=indexes,
        role=st.sampled_from(["user", "assistant"]),
        key=st.none() | st.sampled_from(["a", "b", "c"]),
    )
    def append(self, n: int, role: str, key: str | None) -> None:
        id, session = self.pick(n)
        self.text_count += 1
        content = f"text {self.text_count}"

        def call() -> Any:
            return self.store.sessions.append(id, role, content, key=key)

        if key in session.keys:
            assert call().number == session.keys[str(key)]
            return
        if self.is_rejected(self.error_if_closed(session), call):
            return
        session.turns.append((role, content, session.agent if role == "assistant" else None))
        turn = call()
        assert turn.number == len(session.turns)
        if key is not None:
            session.keys[key] = turn.number

    @precondition(lambda self: self.sessions)
    @rule(n=indexes, count=st.integers(1, 4))
    def append_many(self, n: int, count: int) -> None:
        id, session = self.pick(n)
        new = [{"role": "user", "content": f"many {self.text_count} {i}"} for i in range(count)]
        self.text_count += 1

        def call() -> Any:
            return self.store.sessions.append_many(id, new)

        if self.is_rejected(self.error_if_closed(session), call):
            return
        call()
        session.turns += [("user", turn["content"], None) for turn in new]

    @precondition(lambda self: self.sessions)
    @rule(
        n=indexes,
        to=st.sampled_from(AGENTS),
        policy=st.sampled_from(["all", "last", "summary"]),
        last=st.integers(1, 5),
        note=st.none() | st.just("note"),
    )
    def handoff(self, n: int, to: str, policy: str, last: int, note: str | None) -> None:
        id, session = self.pick(n)

        def call() -> Any:
            return self.store.sessions.handoff(
                id,
                to,
                policy,
                note,
                last=last if policy == "last" else None,
                summary="so far" if policy == "summary" else None,
            )

        if self.is_rejected(self.error_if_closed(session), call):
            return
        stored = call()
        model_handoff = ModelHandoff(session.agent, to, len(session.turns), policy, last, note)
        session.handoffs.append(model_handoff)
        session.last_handoff, session.agent, session.pointer = model_handoff, to, None
        assert (stored.number, stored.at_turn) == (len(session.handoffs), len(session.turns))
        assert self.names[stored.from_agent_id] == model_handoff.giver

    @precondition(lambda self: self.sessions)
    @rule(n=indexes)
    def clear(self, n: int) -> None:
        id, session = self.pick(n)
        if self.is_rejected(self.error_if_closed(session), lambda: self.store.sessions.clear(id)):
            return
        self.store.sessions.clear(id)
        session.cleared, session.last_handoff, session.state, session.pointer = (
            len(session.turns),
            None,
            {},
            None,
        )

    @precondition(lambda self: self.sessions)
    @rule(n=indexes, at=st.integers(-1, 12))
    def fork(self, n: int, at: int) -> None:
        id, session = self.pick(n)
        error = None if 0 <= at <= len(session.turns) else Invalid
        if self.is_rejected(error, lambda: self.store.sessions.fork(id, at)):
            return
        forked = self.store.sessions.fork(id, at)
        later = [item for item in session.handoffs if item.at > at]
        last_handoff = (
            session.last_handoff if session.last_handoff and session.last_handoff.at <= at else None
        )
        self.sessions[forked.id] = ModelSession(
            turns=session.turns[:at],
            agent=later[0].giver if later else session.agent,
            cleared=session.cleared if session.cleared <= at else 0,
            last_handoff=last_handoff,
            handoffs=[last_handoff] if last_handoff else [],
        )

    @precondition(lambda self: self.sessions)
    @rule(n=indexes, name=st.sampled_from("xy"), value=st.none() | st.integers(0, 3))
    def remember(self, n: int, name: str, value: int | None) -> None:
        id, session = self.pick(n)

        def call() -> Any:
            return self.store.sessions.set_state(id, name, value)

        if self.is_rejected(self.error_if_closed(session), call):
            return
        call()
        session.state.pop(name, None)
        if value is not None:
            session.state[name] = value

    @precondition(lambda self: self.sessions)
    @rule(n=indexes)
    def point(self, n: int) -> None:
        id, session = self.pick(n)
        session.pointer = f"p{self.text_count}"
        self.store.sessions.set_provider_session(id, "claude", session.pointer)

    @precondition(lambda self: self.sessions)
    @rule(n=indexes)
    def close_or_reopen(self, n: int) -> None:
        id, session = self.pick(n)
        sessions = self.store.sessions
        illegal, legal = (
            (sessions.reopen, sessions.close)
            if session.open
            else (
                sessions.close,
                sessions.reopen,
            )
        )
        assert self.is_rejected(IllegalMove, lambda: illegal(id))
        legal(id)
        session.open = not session.open

    @invariant()
    def sessions_match_the_model(self) -> None:
        sessions = self.store.sessions
        for id, session in self.sessions.items():
            stored = sessions.get(id)
            assert self.names[str(stored.agent_id)] == session.agent
            assert (stored.turns, stored.state == "open") == (len(session.turns), session.open)
            assert (stored.provider_session, sessions.state(id)) == (session.pointer, session.state)
            turns = [
                (turn.role, turn.content, self.names.get(turn.agent_id or ""))
                for turn in walk(lambda id=id, **options: sessions.turns(id, **options), limit=3)
            ]
            assert turns == session.turns
            backwards = walk(
                lambda id=id, **options: sessions.turns(id, newest=True, **options), limit=4
            )
            assert [turn.number for turn in backwards] == list(range(len(session.turns), 0, -1))
            context = sessions.context(id)
            assert [turn.content for turn in context.turns] == session.context()
            assert context.note == (session.last_handoff.note if session.last_handoff else None)


@allow_shrinking_time
def test_sessions_match_a_list_model(fresh_url: FreshUrl) -> None:
    run_machine(SessionsMachine, fresh_url, examples=25, steps=25)
