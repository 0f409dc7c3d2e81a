"""One attempt of a run: one process of the agent, with its streams and its end."""

import errno
import time
from collections.abc import Callable, Iterator, Set
from functools import partial
from typing import TYPE_CHECKING

from corral.adapters.processes import process, process_marks
from corral.adapters.processes.process import ProcessIdentity
from corral.domain.runs import outcome
from corral.domain.runs.model import Attention
from corral.domain.runs.supervision import LEFTOVER_GRACE_MS
from corral.kernel.exit_status import ExitStatus
from corral.supervisor.agent_io import AgentIO
from corral.supervisor.agent_io_factory import AgentIOFactory
from corral.supervisor.child import AdoptedProcess, CannotStart, ChildProcess
from corral.supervisor.terminate import Terminator

if TYPE_CHECKING:
    import select

    from corral.supervisor.launch_plan import LaunchPlan
    from corral.supervisor.lease import RunLease
    from corral.supervisor.output import OutputWriter
    from corral.supervisor.streams import AgentStreams

MIN_POLL_SECONDS = 0.05


class AgentAttempt:
    """The agent's process and streams, from the fork until all of its output was read.

    `fork` and `adopt` create an attempt. `execute` starts the program of a forked one. After the
    agent has ended: `read_exit`, `terminate_leftovers`, `close`, `interpret_end`, in this order.
    """

    def __init__(
        self,
        lease: "RunLease",
        output: "OutputWriter",
        plan: "LaunchPlan",
        *,
        agent_process: ProcessIdentity,
        child: ChildProcess | AdoptedProcess,
        agent_io: AgentIO,
        streams: "AgentStreams | None",
        on_output: Callable[[bytes], None],
    ) -> None:
        self._lease = lease
        self._output = output
        self._plan = plan
        self._child = child
        self._streams = streams
        """None if another supervisor opened the streams: they ended with it."""
        self._on_output = on_output
        self._mark = process_marks.run_mark(lease.run.id)
        self.agent_process = agent_process
        self.agent_io = agent_io
        self.started_at = self.active_at = time.monotonic()
        """When the attempt started, and when the agent last showed activity."""
        self.terminator: Terminator | None = None
        """Terminates the processes of the attempt; None until the termination begins."""
        self._is_idle = False
        self._is_unanswered = False

    @classmethod
    def fork(
        cls,
        lease: "RunLease",
        output: "OutputWriter",
        plan: "LaunchPlan",
        *,
        previous: ExitStatus | None,
        quick_failures: int,
        on_output: Callable[[bytes], None],
    ) -> "AgentAttempt":
        """Create the agent's process and record it in the store; `execute` starts its program.

        The identity is stored before the program runs, so the store knows every agent that ever
        ran. `previous` is the end of the attempt before;
        None for a queued run. `on_output` is called with all copied output. Raises Conflict when
        another supervisor has the run, and CannotStart when there is no process or file for the
        attempt. No process and no descriptor is left after an error.
        """
        number = lease.run.attempts + 1
        command = plan.build_command(lease.log, resume=number > 1)
        streams = plan.create_streams(command)
        try:
            child = ChildProcess.fork(
                command.args,
                cwd=lease.run.cwd,
                env=plan.build_environment(command),
                stdio=streams.open_stdio(),
                folder=plan.folder,
                attempt=number,
            )
        except OSError as error:  # out of descriptors or disk space
            streams.close()
            path = str(error.filename or plan.folder)
            raise CannotStart(error.errno or errno.EIO, path) from error
        except BaseException:
            streams.close()
            raise
        streams.close_child_ends()
        try:
            agent_process = process.identify(child.pid)
            assert agent_process is not None
            lease.acquire(agent_process, plan.folder, previous, quick_failures)
            agent_io = AgentIOFactory(plan).create(command, lease.run, streams, lease.log)
        except BaseException:
            child.abort()
            streams.close()
            raise
        return cls(
            lease,
            output,
            plan,
            agent_process=agent_process,
            child=child,
            agent_io=agent_io,
            streams=streams,
            on_output=on_output,
        )

    @classmethod
    def adopt(
        cls,
        lease: "RunLease",
        output: "OutputWriter",
        plan: "LaunchPlan",
        *,
        on_output: Callable[[bytes], None],
    ) -> "AgentAttempt":
        """Take over the attempt of a supervisor that is gone.

        Raises Conflict when another supervisor was faster.
        """
        agent_process = lease.take_over()
        return cls(
            lease,
            output,
            plan,
            agent_process=agent_process,
            child=AdoptedProcess(agent_process, plan.folder, lease.run.attempts),
            agent_io=AgentIOFactory(plan).create_adopted(lease.run, lease.log),
            streams=None,
            on_output=on_output,
        )

    def execute(self) -> None:
        """Start the agent's program. Raises CannotStart, after the process was ended."""
        assert isinstance(self._child, ChildProcess)
        try:
            self._child.execute()
        except CannotStart:
            self._child.abort()
            raise

    # -- while the agent runs ------------------------------------------------------------------

    @property
    def exit_fd(self) -> int | None:
        """Readable when the agent has ended; None if its end can only be polled."""
        return self._child.exit_fd

    @property
    def is_alive(self) -> bool:
        """Whether the agent's process exists."""
        return process.check(self.agent_process) is process.Liveness.ALIVE

    @property
    def size(self) -> tuple[int, int] | None:
        """Rows and columns of the agent's terminal, if this supervisor has it."""
        return self._streams.size if self._streams is not None else None

    def register(self, poll: "select.poll") -> None:
        """Register the streams that this supervisor copies."""
        if self._streams is not None:
            self._streams.register(poll)

    def handle(self, descriptors: Set[int]) -> None:
        """Copy the output of the streams that are ready."""
        if self._streams is not None:
            self._streams.handle(descriptors, self._write_output, self._output.write_errors)

    def _write_output(self, data: bytes) -> None:
        self.active_at = time.monotonic()
        self._output.write(data)
        self.agent_io.feed(data)
        self._on_output(data)

    def poll_agent(self) -> None:
        """Record what the agent reported since the last call: turns, usage, questions."""
        has_output, has_items = self.agent_io.poll(), self.agent_io.follow(self.agent_process.pid)
        if has_output or has_items:
            self.active_at = time.monotonic()

    def next_polls(self, now: float) -> Iterator[float]:
        """Yield when `poll_agent` is to be called again, if no output comes before."""
        if self.agent_io.pause is not None:
            yield now + self.agent_io.pause
        if self.agent_io.transcript is not None:
            yield max(self.agent_io.transcript.next_poll, now + MIN_POLL_SECONDS)

    def type_in(self, data: bytes) -> bool:
        """Type into the agent's terminal; return False if it has none."""
        self.active_at = time.monotonic()
        return self._streams is not None and self._streams.type_in(data)

    def resize(self, rows: int, columns: int) -> None:
        """Set the size of the agent's terminal, and record it."""
        if self._streams is not None:
            self._streams.resize(rows, columns)
            self.record_size()
        self.agent_io.resize(rows, columns)

    def record_size(self) -> None:
        """Record the size of the agent's terminal, if it has one."""
        if self.size is not None:
            self._lease.record_size(*self.size)

    # -- idleness and termination --------------------------------------------------------------

    def update_activity(self, now: float) -> None:
        """Count writes to an output file that the agent writes itself as activity."""
        if self._streams is None or self._streams.source is None:
            self.active_at = max(self.active_at, now - self._output.seconds_since_write())

    def mark_idle(self) -> None:
        """Note that the attempt ends because the agent is idle."""
        self._is_idle = True
        self._is_unanswered = self.agent_io.status.attention is Attention.NEEDS_INPUT

    def begin_termination(self, grace_period_ms: int) -> None:
        """Ask the agent to quit if it is idle or done, or send SIGTERM; `terminator` continues."""
        asked = (self._is_idle or self.agent_io.status.is_done) and self._ask_to_quit()
        self.terminator = Terminator(
            self.agent_process,
            self._mark,
            guard=self._child.guard,
            grace_period_ms=grace_period_ms,
            asked=asked,
        )

    def _ask_to_quit(self) -> bool:
        """Ask an agent that is done, or idle, to quit; return False if there is no way to ask."""
        if self._streams is None:
            return False
        if self.agent_io.status.is_done:
            return self._streams.close_input()
        command = self._plan.provider.quit_command
        return command is not None and self.agent_io.quit(command, self._skip_request)

    def _skip_request(self) -> None:
        if self.terminator is not None:
            self.terminator.skip_request()

    # -- after the agent has ended -------------------------------------------------------------

    def read_exit(self) -> ExitStatus:
        """Read the output that is left, and return the exit status as the guard reported it."""
        self._drain()
        return self._child.wait_for_exit()

    def _drain(self) -> None:
        if self._streams is not None:
            self._streams.drain(self._write_output, self._output.write_errors)

    def watch_without_guard(self) -> None:
        """Continue after the guard was killed; the exit status of the agent stays unknown."""
        self._child.close()
        self._child = AdoptedProcess(
            self.agent_process, self._plan.folder, self._lease.run.attempts
        )

    def terminate_leftovers(self) -> tuple[int, ...]:
        """Terminate the processes that the agent left behind; return the pids that survived."""
        find = partial(
            process.find_run_processes,
            None,
            self._mark,
            guard=self._child.guard,
            spare_others=True,
        )
        leftovers = find()
        if leftovers:
            killed = process.terminate_run_processes(
                None,
                self._mark,
                grace_period_ms=LEFTOVER_GRACE_MS,
                guard=self._child.guard,
                spare_others=True,
            )
            counts = {"processes": len(leftovers), "killed": killed}
            self._lease.log("warn", "The agent left processes behind; they were ended.", counts)
        survivors = find() if leftovers else []
        return tuple(survivor.pid for survivor in survivors)

    def close(self) -> None:
        """Release the guard, read the rest of the output, and import the results of a sandbox."""
        self._child.close()
        self._drain()
        if self._streams is not None:
            self._streams.close()
        self._output.close()
        if self._output.error is not None:
            details = {"reason": self._output.error, "bytes": self._output.lost_bytes}
            self._lease.log("error", "Some output could not be written and is lost.", details)
        self.agent_io.close()
        self.agent_io.close_transcript()
        if self._plan.worktree_sandbox is not None:
            # The transcript names the provider's session, whose files are imported.
            session = self._plan.get_provider_session()
            self._plan.worktree_sandbox.collect(session, self._lease.log)

    def interpret_end(self, exit_status: ExitStatus, forwarded_signals: Set[int]) -> ExitStatus:
        """Combine the exit status with the outcome that the agent itself reported.

        `forwarded_signals` are the signals that clients sent to the agent.
        """
        if self._is_idle:
            return self._interpret_idle_end(exit_status)
        typed_signals = self._streams.typed_signals if self._streams is not None else frozenset()
        was_forwarded = exit_status.was_ended_by({*forwarded_signals, *typed_signals})
        exit_status = exit_status._replace(signal_was_forwarded=was_forwarded)
        result = self.agent_io.status.result
        if result is None or result.ok:
            return exit_status._replace(finished_work=self.agent_io.status.is_done)
        if was_forwarded:
            return exit_status
        return exit_status._replace(reason=result.message or "the agent reported a failure")

    def _interpret_idle_end(self, exit_status: ExitStatus) -> ExitStatus:
        """Return the end of an idle run: completed only if the agent quit when it was asked to.

        A run is cancelled if its agent was forced to end, or waited for an answer.
        """
        forced_by = self.terminator.forced_by if self.terminator is not None else None
        if self._is_unanswered:
            return exit_status._replace(signal_was_forwarded=True, reason=outcome.UNANSWERED_REASON)
        if forced_by is not None:
            reason = f"{outcome.IDLE_REASON}; it did not quit and was ended with {forced_by.name}"
            return exit_status._replace(signal_was_forwarded=True, reason=reason)
        return exit_status._replace(finished_work=True, reason=outcome.IDLE_REASON)
