"""Schedules, compared with a model under random operations: due times and the next time."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import Bundle, invariant, multiple, rule

from corral.domain.mail.model import Letter
from corral.domain.schedules.model import Schedule
from corral.kernel.clock import HOUR, MINUTE, SECOND
from corral.kernel.errors import IllegalMove, Refused
from tests.properties.state_machine import (
    FreshUrl,
    StoreMachine,
    allow_shrinking_time,
    run_machine,
)

BOX = "queue:due"
CATCH_UP = 100
GRACE = MINUTE
FIVE_MINUTES = 5 * MINUTE


@dataclass
class ModelSchedule:
    """A schedule of the model: times at a fixed interval, or one time."""

    id: str
    first: int
    step: int | None
    misfire: str
    overlap: str
    next_at: int | None
    state: str = "active"
    last_at: int | None = None
    open: str | None = None
    """The key of its last letter while that is open."""

    def is_pending(self) -> bool:
        return self.state in ("active", "paused")

    def after(self, time: int) -> int | None:
        """Return the first scheduled time after `time`."""
        if self.step is None:
            return self.first if self.first > time else None
        if time < self.first:
            return self.first
        return self.first + ((time - self.first) // self.step + 1) * self.step

    def due(self, now: int) -> tuple[list[int], int | None]:
        """Return the times to put now by the misfire policy, and the next time."""
        assert self.next_at is not None
        missed = [self.next_at]
        while (more := self.after(missed[-1])) is not None and more <= now:
            missed.append(more)
        if self.misfire == "all":
            due_times = missed[:CATCH_UP]
            return due_times, self.after(due_times[-1])
        latest = missed[-1]
        in_time = self.misfire == "latest" or now - latest <= GRACE
        return [latest] if in_time else [], self.after(max(now, latest))


class ScheduleMachine(StoreMachine):
    plans = Bundle("plans")

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.all: list[ModelSchedule] = []
        self.put: list[str] = []

    def keep(self, schedule: Schedule, first: int, step: int | None) -> ModelSchedule:
        plan = ModelSchedule(
            schedule.id, first, step, schedule.misfire, schedule.overlap, next_at=first
        )
        self.all.append(plan)
        return plan

    # -- create ---------------------------------------------------------------------------------

    @rule(
        target=plans,
        step=st.sampled_from([5 * SECOND, 7 * SECOND, MINUTE, HOUR]),
        misfire=st.sampled_from(["all", "latest", "skip"]),
        overlap=st.sampled_from(["allow", "skip", "replace"]),
    )
    def every(self, step: int, misfire: str, overlap: str) -> ModelSchedule:
        schedule = self.store.schedules.create(
            BOX, "tick", every_ms=step, misfire=misfire, overlap=overlap
        )
        return self.keep(schedule, self.now + step, step)

    @rule(
        target=plans,
        misfire=st.sampled_from(["all", "latest", "skip"]),
        overlap=st.sampled_from(["allow", "skip", "replace"]),
    )
    def cron(self, misfire: str, overlap: str) -> ModelSchedule:
        schedule = self.store.schedules.create(
            BOX, "tick", cron="*/5 * * * *", misfire=misfire, overlap=overlap
        )
        return self.keep(schedule, (self.now // FIVE_MINUTES + 1) * FIVE_MINUTES, FIVE_MINUTES)

    @rule(target=plans, delay=st.sampled_from([5 * SECOND, MINUTE, HOUR]))
    def timer(self, delay: int) -> Any:
        def call() -> Schedule:
            return self.store.timers.set(BOX, "tea", delay_ms=delay)

        pending = [plan for plan in self.all if plan.step is None and plan.is_pending()]
        if self.is_rejected(Refused if len(pending) >= 20 else None, call):
            return multiple()
        return self.keep(call(), self.now + delay, None)

    # -- firing ---------------------------------------------------------------------------------

    @rule()
    def fire_due(self) -> None:
        expected: list[str] = []
        due = [p for p in self.all if p.state == "active" and p.next_at <= self.now]
        for plan in sorted(due, key=lambda plan: (plan.next_at, plan.id))[:20]:
            expected += self.fire(plan)
        letters = self.store.schedules.fire_due(limit=20)
        assert [letter.key for letter in letters] == expected
        self.put += expected

    def fire(self, plan: ModelSchedule) -> list[str]:
        keys = []
        times, plan.next_at = plan.due(self.now)
        for time in times:
            if plan.overlap == "skip" and plan.open:
                continue
            plan.open = f"{plan.id}@{time}"
            plan.last_at = time
            keys.append(plan.open)
        if plan.next_at is None:
            plan.state = "finished"
        return keys

    @rule(data=st.data())
    def work_on_a_letter(self, data: Any) -> None:
        letters = self.store.mail.claim(BOX, owner="me", limit=data.draw(st.integers(1, 3)))
        for letter in letters:
            self.store.mail.ack(letter)
            for plan in self.all:
                if plan.open == letter.key:
                    plan.open = None

    # -- changes --------------------------------------------------------------------------------

    @rule(plan=plans, how=st.sampled_from(["pause", "pause", "resume", "resume", "cancel"]))
    def change(self, plan: ModelSchedule, how: str) -> None:
        getattr(self, how)(plan)

    def pause(self, plan: ModelSchedule) -> None:
        def call() -> Schedule:
            return self.store.schedules.pause(plan.id)

        if not self.is_rejected(None if plan.state == "active" else IllegalMove, call):
            call()
            plan.state, plan.next_at = "paused", None

    def resume(self, plan: ModelSchedule) -> None:
        def call() -> Schedule:
            return self.store.schedules.resume(plan.id)

        if not self.is_rejected(None if plan.state == "paused" else IllegalMove, call):
            call()
            # A single time that passed meanwhile is put late; repeating rules just continue.
            plan.state, plan.next_at = "active", plan.after(self.now) or self.now

    def cancel(self, plan: ModelSchedule) -> None:
        def call() -> Schedule:
            return self.store.schedules.delete(plan.id)

        is_pending = plan.state in ("active", "paused")
        if not self.is_rejected(None if is_pending else IllegalMove, call):
            call()
            plan.state, plan.next_at = "cancelled", None

    @rule(ms=st.sampled_from([SECOND, 5 * SECOND, 90 * SECOND, 20 * MINUTE, 3 * HOUR]))
    def wait(self, ms: int) -> None:
        self.clock.advance(ms)

    # -- invariants -----------------------------------------------------------------------------

    @invariant()
    def schedules_match_the_model(self) -> None:
        schedules = [
            *self.store.schedules.list(all=True, limit=1_000).items,
            *self.store.timers.list(all=True, limit=1_000).items,
        ]
        assert sorted(
            (item.id, item.state, item.next_at, item.last_at) for item in schedules
        ) == sorted((plan.id, plan.state, plan.next_at, plan.last_at) for plan in self.all)
        next_times = [plan.next_at for plan in self.all if plan.next_at is not None]
        assert self.store.schedules.next_at() == min(next_times, default=None)

    @invariant()
    def overlap_policy_allows_one_open_letter(self) -> None:
        open_keys = [letter.key for letter in self.letters(all=False)]
        for plan in self.all:
            own_keys = [key for key in open_keys if str(key).startswith(plan.id)]
            if plan.overlap != "allow":
                assert own_keys == ([plan.open] if plan.open else [])

    def letters(self, *, all: bool) -> list[Letter]:
        page = self.store.mail.list(all=all, limit=1_000)
        letters = page.items
        while page.next is not None:
            page = self.store.mail.list(all=all, limit=1_000, after=page.next)
            letters = [*letters, *page.items]
        return letters

    def teardown(self) -> None:
        keys = [letter.key for letter in self.letters(all=True)]
        assert keys[::-1] == self.put, "each scheduled time once, in order"
        super().teardown()


@allow_shrinking_time
def test_schedules_match_the_model(fresh_url: FreshUrl) -> None:
    run_machine(ScheduleMachine, fresh_url, examples=40, steps=25)
