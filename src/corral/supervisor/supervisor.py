"""Keeping one run: start the agent, watch it, and say how it ended.

The keeper holds the run by a lease with a fence. It renews the lease, obeys requests to stop (by
the line, or by the run's state in the store), ends the whole family of processes when it has to,
and starts the next attempt when the policy says so. Whatever it does, the store knows first;
whatever it cannot do because it died, a recovery does.
"""

import os
import select
import signal
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from corral.adapters import process, run_marks
from corral.adapters.process import Identity
from corral.domain.runs import outcome
from corral.domain.runs.model import Attention, Launch, Run, Stop
from corral.kernel.errors import Conflict, CorralError, StoreUnavailable
from corral.kernel.exit_status import End
from corral.supervisor.agent_io import Voice
from corral.supervisor.child import LEFTOVER_GRACE_MS, Adopted, Attempt, CannotStart
from corral.supervisor.control_server import Line
from corral.supervisor.lease import Hold
from corral.supervisor.output import Output
from corral.supervisor.plan import Plan
from corral.supervisor.streams import Streams
from corral.supervisor.terminate import Ender
from corral.supervisor.usage import Meter

if TYPE_CHECKING:
    from corral.adapters.ancestry import Ancestor
    from corral.api import Corral
    from corral.kernel.identity import RunIdentity

LONGEST_LOOK = 5.0
WATCHER_SECONDS = 2.0
TRIM_SECONDS = 2.0
MOST_PARENTS = 50
"""How many parents of a run are checked."""
LONGEST_START = 120.0  # seconds until an interface that is not recognized counts as started


class Keeper:
    """One run, from the moment it is taken to the moment it is over."""

    def __init__(self, store: "Corral", run: Run, launch: Launch, plan: Plan) -> None:
        self._store = store
        self._hold = Hold(
            store,
            run,
            secrets=list(plan.secrets.values()),
            is_bound=launch.host is not None,
        )
        self._launch = launch
        self._plan = plan
        self.folder: Path = plan.folder
        self._mark = f"CORRAL_RUN={run.id}"
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._wake, False)
        # The attempt that is going on; none between two of them.
        self._agent: Identity | None = None
        self._attempt: Attempt | Adopted | None = None
        self._streams: Streams | None = None
        self._voice = Voice()
        self._output = Output(self.folder, cap=launch.output_cap, secrets=plan.secrets.values())
        self._began = 0.0
        self._active = 0.0
        # How it is to end, once it is.
        self._interrupted = False
        self._verdict: tuple[str, str] | None = None
        self._idle = False
        self._is_unanswered = False
        self._grace_ms = launch.grace_ms
        self._ender: Ender | None = None
        # Those who watch, and how much it uses.
        self._line: Line | None = None
        self._meter = Meter()
        self._wait_for_watcher: float | None = None
        self._next_trim = 0.0

    @property
    def secrets(self) -> list[str]:
        """The values that must not be kept anywhere."""
        return list(self._plan.secrets.values())

    @property
    def run(self) -> Run:
        """The run as the store last told it."""
        return self._hold.run

    # -- the whole story -----------------------------------------------------------------------

    def begin(self, *, watched: bool = False) -> None:
        """Take the run and start its first attempt. What it writes to its terminal waits for
        whoever is about to watch it, for a moment.

        Raises Conflict when another keeper has it, CannotStart when the program is none (the run
        is failed then, and the store says so).
        """
        self._start(None)
        self._open_line()
        if watched:
            self._wait_for_watcher = time.monotonic() + WATCHER_SECONDS

    def adopt(self, verdict: tuple[str, str] | None = None) -> None:
        """Take over a run whose agent lives on without a keeper, or ended without one. Raises
        Conflict. `verdict` is what a recovery says of an agent that is gone."""
        self._verdict = verdict
        self._agent = self._hold.take_over()
        self._attempt = Adopted(self._agent, self.folder, self.run.attempts)
        self._voice = self._plan.voice_of_old(self.run, self._hold.log)
        lived = max(0, self._store.now() - (self.run.started_at or 0)) / 1_000
        self._began = time.monotonic() - lived
        self._active = time.monotonic()
        self._open_line()

    def _open_line(self) -> None:
        """From now on it can be told things; what was wanted before that is asked of the store."""
        self._line = Line(self.folder, self)
        self._hold.next_beat = time.monotonic()

    def keep(self) -> Run:
        """Stay until the run is over, or others have it; gives it back as it is then."""
        self._hold.describe(self._plan.environment())
        self._tell_size()
        while True:
            end = self._watch()
            if self._hold.is_dismissed:
                return self.run
            lasted = int((time.monotonic() - self._began) * 1_000)
            quick = outcome.quick_failures(self.run.quick_failures, end, lasted)
            self._renew()
            again: End | None = end
            limit = self._voice.limit
            if limit is not None and self._is_quota(end) and self._hold.park(limit):
                if not self._wait_out():
                    return self.run
                again = None
            elif not self._goes_on(end, quick) or not self._pause(quick):
                return self._finish(end)
            try:
                self._start(again, quick)
            except (CannotStart, Conflict):
                return self._store.runs.get(self.run.id)

    def interrupt(self) -> None:
        """Called by a signal: the machine, or a person, wants the keeper itself to end."""
        self._interrupted = True
        with suppress(OSError):
            os.write(self._wake, b".")

    # -- attempts ------------------------------------------------------------------------------

    def _start(self, after: End | None, quick: int = 0) -> None:
        number = self.run.attempts + 1
        start = self._plan.start(resume=number > 1)
        self._streams = streams = self._plan.streams(start)
        attempt = Attempt(
            start.args,
            cwd=self.run.cwd,
            env=self._plan.env(start),
            stdio=streams.stdio(),
            folder=self.folder,
            number=number,
        )
        streams.handed_over()
        try:
            agent = process.identify(attempt.pid)
            assert agent is not None
            self._hold.take(agent, self.folder, after, quick)
            self._voice = self._plan.voice(start, self.run, streams, self._hold.log)
        except BaseException:
            attempt.end()
            attempt.close()
            streams.close()
            raise
        self._agent, self._attempt = agent, attempt
        self._began = self._active = time.monotonic()
        try:
            attempt.begin()
        except CannotStart as error:
            attempt.end()
            attempt.close()
            self._finish(End(exit_code=error.exit_code, reason=error.reason))
            raise
        self._hold.launched()

    def _goes_on(self, end: End, quick: int) -> bool:
        return not (end.well or end.sent) and outcome.goes_on(
            end,
            stop_reason=self._hold.stop_wanted,
            attempts=self.run.attempts,
            restarts=self._launch.restarts,
            quick=quick,
        )

    def _pause(self, quick: int) -> bool:
        """Wait a little before the next attempt; False when somebody stopped it meanwhile."""
        until = time.monotonic() + outcome.pause_ms(quick) / 1_000
        self._agent = self._attempt = self._streams = self._ender = None
        while time.monotonic() < until and self._hold.stop_wanted is None:
            self._turn(until - time.monotonic())
        return self._hold.stop_wanted is None

    def _is_quota(self, end: End) -> bool:
        """Whether its provider's quota ended it, and nobody else did."""
        return end.exit_code != 0 and self._hold.stop_wanted is None

    def _wait_out(self) -> bool:
        """Wait until its provider's quota is there again; False when it went elsewhere meanwhile.
        Should this keeper end, somebody else starts it then."""
        self._agent = self._attempt = self._streams = self._ender = None
        while (left := self.run.due_at - self._store.now()) > 0:
            if self._interrupted:
                return False
            self._turn(min(left / 1_000, LONGEST_LOOK))
            with suppress(StoreUnavailable):
                if self._store.runs.get(self.run.id).fence != self.run.fence:
                    return False
        return True

    # -- watching ------------------------------------------------------------------------------

    def _watch(self) -> End:
        """Turn round until the agent has ended; everything that it wrote is kept by then."""
        while not self._turn(self._wait_for()):
            pass
        if self._hold.is_dismissed:
            return End()
        self._drain()
        assert self._attempt is not None
        end = self._attempt.end()
        if not end.known and self._lives():
            # Only the guard was killed. The agent is well, and how it ends will not be known.
            assert self._agent is not None
            self._attempt.close()
            self._attempt = Adopted(self._agent, self.folder, self.run.attempts)
            return self._watch()
        survivors = self._end_leftovers()
        unsure = not end.known and not run_marks.is_supported()
        end = end._replace(survivors=survivors, unsure=unsure)
        self._drain()
        if self._streams is not None:
            self._streams.close()
        self._output.close()
        if self._output.trouble is not None:
            lost = {"reason": self._output.trouble, "bytes": self._output.lost_bytes}
            self._hold.log("error", "Some of its output could not be kept.", lost)
        return self._as_told(end)

    def _lives(self) -> bool:
        return self._agent is not None and process.look(self._agent) is process.Standing.ALIVE

    def _as_told(self, end: End) -> End:
        """What the agent says of its end goes with what its process returned."""
        self._voice.close()
        self._voice.close_record()
        self._plan.collect(self._hold.log)  # now the session is known of which it takes over files
        finished = self._voice.finished
        if self._idle:
            return self._idle_end(end)
        passed_on = self._line.passed_on if self._line is not None else set()
        typed = self._streams.typed_signals if self._streams is not None else set()
        end = end._replace(sent=end.is_of(passed_on | typed))
        if finished is None or finished.ok:
            return end._replace(well=self._voice.is_done)
        said = finished.message or "the agent said that it failed"
        return end if end.sent else end._replace(reason=said)

    def _idle_end(self, end: End) -> End:
        """Return the end of an idle run: completed if the agent quit when asked, otherwise not (it
        was forced, or waited for an answer)."""
        forced = self._ender.forced_by if self._ender is not None else None
        if self._is_unanswered:
            return end._replace(sent=True, reason=outcome.UNANSWERED)
        if forced is not None:
            how = f"{outcome.IDLE}; it did not quit and was ended with {forced.name}"
            return end._replace(sent=True, reason=how)
        return end._replace(well=True, reason=outcome.IDLE)

    def _turn(self, seconds: float) -> bool:
        """Wait for something to happen and deal with it; whether the attempt is over."""
        poll = select.poll()
        over = self._attempt.over if self._attempt is not None else None
        streams = self._streams
        if self._waits_for_watcher():
            streams = over = None
        for descriptor in (over, self._woken):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        for held in (streams, self._line):
            if held is not None:
                held.register(poll)
        ready = poll.poll(max(0, int(seconds * 1_000)))
        numbers = {number for number, _ in ready}
        if streams is not None:
            streams.handle(numbers, self._keep, self._output.write_errors)
        if self._line is not None:
            self._line.handle(ready)
        if self._woken in numbers:
            os.read(self._woken, 64)
        self._look_at_the_time()
        return self._hold.is_dismissed or self._is_over(over, numbers)

    def _waits_for_watcher(self) -> bool:
        """The first to watch must not miss the beginning: until then it stays in the terminal."""
        if self._wait_for_watcher is None:
            return False
        watched = self._line is None or self._line.has_watchers
        if watched or time.monotonic() >= self._wait_for_watcher:
            self._wait_for_watcher = None
        return self._wait_for_watcher is not None

    def _is_over(self, over: int | None, ready: set[int]) -> bool:
        if over is not None:
            return over in ready
        if self._wait_for_watcher is not None:
            return False
        # Where a process that is not our child cannot be waited for, it is looked at.
        return not self._lives()

    def _wait_for(self) -> float:
        now = time.monotonic()
        moments = [self._hold.next_beat, self._meter.next_look, self._next_trim]
        if self._ender is not None:
            moments.append(self._ender.next_round)
        elif self._launch.timeout_ms is not None:
            moments.append(self._began + self._launch.timeout_ms / 1_000)
        if self._launch.idle_ms is not None and self._ender is None:
            moments.append(max(self._active + self._launch.idle_ms / 1_000, now + 0.05))
        if self._line is not None and self._line.look_at is not None:
            moments.append(self._line.look_at)
        if self._voice.pause is not None:
            moments.append(now + self._voice.pause)
        if self._plan.confinement is not None:
            moments.append(self._plan.confinement.next_look)
        if self._voice.record is not None:
            moments.append(max(self._voice.record.next_look, now + 0.05))
        return min(moments) - now

    def _look_at_the_time(self) -> None:
        now = time.monotonic()
        if self._line is not None and self._line.look_at is not None and now >= self._line.look_at:
            self._line.look()
        if now >= self._next_trim:
            self._next_trim = now + TRIM_SECONDS
            self._output.trim()
        if now >= self._hold.next_beat:
            self._renew()
        if now >= self._meter.next_look:
            self._hold.keep_usage(self._meter.look(self._agent))
        if self._interrupted and self._hold.stop_wanted is None and not self._hold.is_parked:
            self._hold.ask_to_stop(Stop.INTERRUPTED)
        if self._agent is not None and not self._hold.is_dismissed:
            self._listen()
            self._look_at_the_limits(now)

    def _look_at_the_limits(self, now: float) -> None:
        """End it when it is to be ended, or when its time or its patience is over."""
        timeout_ms, idle_ms = self._launch.timeout_ms, self._launch.idle_ms
        if self._ender is not None:
            self._ender.go_on(now)
        elif self._hold.stop_wanted is not None or self._voice.is_done:
            self._begin_to_end()
        elif timeout_ms is not None and now >= self._began + timeout_ms / 1_000:
            self._hold.ask_to_stop(Stop.TIMED_OUT)
        elif (reason := self._excess()) is not None:
            self._grace_ms = 0
            self._hold.ask_to_stop(Stop.INTERRUPTED, reason)
        elif idle_ms is not None:
            self._look_for_idleness(now, idle_ms / 1_000)

    def _excess(self) -> str | None:
        """Return the exceeded sandbox limit, if any, after killing the run. All processes inside
        die with the process that made the sandbox."""
        limits, agent = self._plan.confinement, self._agent
        if limits is None or agent is None:
            return None
        reason = limits.excess(agent)
        if reason is not None:
            process.send(agent, signal.SIGKILL)
        return reason

    def _look_for_idleness(self, now: float, patience: float) -> None:
        if self._streams is None or self._streams.source is None:
            self._active = max(self._active, now - self._output.age())
        if self._voice.is_starting and now < self._began + LONGEST_START:
            self._active = now
        if now >= self._active + patience and not self._voice.is_working:
            self._idle = True
            self._is_unanswered = self._voice.attention is Attention.NEEDS_INPUT
            self._begin_to_end()

    # -- output --------------------------------------------------------------------------------

    def _keep(self, data: bytes) -> None:
        self._active = time.monotonic()
        self._output.write(data)
        self._voice.feed(data)
        if self._line is not None:
            self._line.show(data)

    def _drain(self) -> None:
        if self._streams is not None:
            self._streams.drain(self._keep, self._output.write_errors)

    def _listen(self) -> None:
        """Take in what the agent says of itself."""
        agent = self._agent.pid if self._agent is not None else None
        heard, followed = self._voice.look(), self._voice.follow(agent)
        if heard or followed:
            self._active = time.monotonic()
        voice, dialog = self._voice, self.run.dialog
        is_told = (voice.dialog and voice.dialog.id) == (dialog and dialog.id)
        if voice.attention != self.run.attention or not is_told:
            self._hold.call_for(voice.attention, voice.dialog)
        if self._voice.over_budget and self._hold.stop_wanted is None:
            self._hold.ask_to_stop(Stop.OVER_BUDGET, self._voice.over_budget)

    def _renew(self) -> None:
        self._hold.renew(self._agent, self._output.bytes(), self._meter)

    # -- ending --------------------------------------------------------------------------------

    def _begin_to_end(self) -> None:
        quiet = (self._idle or self._voice.is_done) and self._leave()
        guard = self._attempt.guard if self._attempt is not None else None
        self._ender = Ender(
            self._agent, self._mark, guard=guard, grace_ms=self._grace_ms, quiet=quiet
        )

    def _leave(self) -> bool:
        """Ask an agent that is done, or idle, to quit; False when it cannot be asked."""
        if self._streams is None:
            return False  # another keeper had them
        if self._voice.is_done:
            return self._streams.hang_up()
        command = self._plan.provider.quit_command
        return command is not None and self._voice.quit(command, self._skip_quiet)

    def _skip_quiet(self) -> None:
        if self._ender is not None:
            self._ender.skip_quiet()

    def _end_leftovers(self) -> tuple[int, ...]:
        """End the processes that the run left behind; returns the pids that could not be ended."""
        assert self._attempt is not None
        find = partial(
            process.family, None, self._mark, guard=self._attempt.guard, spare_others=True
        )
        left = find()
        if left:
            killed = process.end_family(
                None,
                self._mark,
                grace_ms=LEFTOVER_GRACE_MS,
                guard=self._attempt.guard,
                spare_others=True,
            )
            found = {"processes": len(left), "killed": killed}
            self._hold.log("warn", "It left processes behind, which were ended.", found)
        survivors = find() if left else []
        self._attempt.close()
        return tuple(survivor.pid for survivor in survivors)

    def _finish(self, end: End) -> Run:
        self._plan.close()
        self._hold.end(end, self._output.bytes(), self._verdict)
        if self._line is not None:
            self._line.end({"exit_code": self.run.exit_code, "signal": self.run.signal})
            self._line = None
        return self.run

    # -- what the line asks --------------------------------------------------------------------

    @property
    def agent(self) -> Identity | None:
        return self._agent

    @property
    def recent(self) -> bytes:
        """The end of what the agent wrote, for those who begin to watch now."""
        return self._output.recent

    def type_in(self, data: bytes) -> bool:
        """Type into the agent's terminal; False when it has none."""
        self._active = time.monotonic()
        return self._streams is not None and self._streams.type_in(data)

    @property
    def voice(self) -> Voice:
        return self._voice

    def is_sandboxed(self, above: "list[Ancestor]") -> bool:
        """Whether the process with these ancestors belongs to a run that a sandbox keeps."""
        with suppress(CorralError), self._store.waiting_at_most(1.0):
            found = self._store.run_of_process(above)
            if found is not None and found.run is not None:
                return self._store.runs.launch_of(found.run).sandbox not in (None, "none")
        return False

    def run_of(self, above: "list[Ancestor]") -> "RunIdentity | None":
        """Return the run of the process with these ancestors; None outside of all runs, and when
        the store cannot be asked now, so that a person can always answer."""
        with suppress(CorralError), self._store.waiting_at_most(1.0):
            return self._store.run_of_process(above)
        return None

    def is_started_by(self, caller: "RunIdentity") -> bool:
        """Whether this run was started from inside the caller's run, directly or by another run."""
        with suppress(CorralError), self._store.waiting_at_most(1.0):
            parent, seen = self.run.parent_id, 0
            while parent is not None and seen < MOST_PARENTS:
                if parent == caller.run:
                    return True
                parent, seen = self._store.runs.get(parent).parent_id, seen + 1
        return False

    def resize(self, rows: int, columns: int) -> None:
        """A watcher's terminal has this size."""
        if self._streams is not None:
            self._streams.resize(rows, columns)
            self._tell_size()
        self._voice.resize(rows, columns)

    def _tell_size(self) -> None:
        if self._streams is not None and self._streams.size is not None:
            self._hold.tell_size(*self._streams.size)

    def hurry(self, grace_ms: int | None) -> None:
        """The store has something to say: somebody wants the run to end, perhaps sooner."""
        if grace_ms is not None:
            self._grace_ms = grace_ms
            if self._ender is not None:
                self._ender.hurry(grace_ms)
        self._renew()
