"""The supervisor: one small process per run that starts the agent, watches it and records its end.

Processes
---------

    caller ── supervisor ── guard ── agent ── processes that the agent starts

- The **caller** is a command, the daemon or another run. It starts the supervisor with
  `adapters/supervisor_process.py`, sends it a start order through a pipe and reads one answer.
- The **supervisor** (`supervisor.py`) owns the run in the store: a lease with a fencing token
  (`lease.py`). It starts an attempt (`attempt.py`), watches it (`event_loop.py`) and starts the
  next one after a failure. The event loop copies output, renews the lease, records turns and usage,
  enforces limits (`limits.py`) and serves the control socket (`control_server.py`).
- The **guard** (`child.py`) is the parent of the agent. It waits for the agent, writes its exit
  status to a file and adopts orphaned descendants, so that none of them escapes.
- The **agent** is the program of the run. Its process exists before its program is executed: it
  waits until its identity (pid, start time, boot id, host) is in the store.

How a run starts
----------------

1. `main.py` reads the start order from the caller and opens the store.
2. `LaunchPlan` (`launch_plan.py`) prepares the command, environment, secrets and sandbox.
3. `Supervisor.start` (`supervisor.py`) begins the first attempt with `AgentAttempt.fork`
   (`attempt.py`).
4. `ChildProcess.fork` (`child.py`) forks guard and agent. The agent waits at the gate.
5. `RunLease.acquire` (`lease.py`) calls `store.internal.runs.acquire` (`api/internal/runs.py`),
   which is `acquire` of `domain/runs/supervision.py`. The run is now `starting` and has the
   identity of its process.
6. `ChildProcess.execute` opens the gate, and the agent executes its program.
7. `RunLease.mark_launched` records the run as `running`; `main.py` answers the caller.
8. `Supervisor.supervise` runs the event loop until the agent has ended, then `RunLease.record_end`.

Who writes what
---------------

    store: state, lease, exit status, usage   supervisor, with its fencing token
    store: turns, charges, log                supervisor (`recorder.py`), keyed by position
    <run folder>/output, stderr               the agent itself, or the supervisor if it must redact
    <run folder>/exit.<attempt>.<pid>         guard
    <run folder>/offset.<attempt>             supervisor: where the attempt's output begins
    <run folder>/control.sock                 supervisor: the control socket
    <run folder>/supervisor.error             supervisor: the traceback of its own failure

What happens when a process dies
--------------------------------

- **Agent**: the guard reports the exit status through a pipe and a file. The supervisor terminates
  leftover processes, then records the end or starts the next attempt.
- **Guard**: the pipe closes without an exit status. If the agent is alive, the supervisor watches
  it by pidfd; its exit status is then unknown and stays unknown.
- **Supervisor**: the agent continues. A recovery (the daemon's reaper or any command that looks at
  the run) starts a new supervisor, which takes the run over with a higher fence. Turns are keyed by
  their position in the output, so re-reading the output adds nothing twice. If the agent ended
  meanwhile, the exit file has its status. A supervisor that dies before the agent's program was
  executed leaves a run that never started: the waiting process reads end-of-file and exits.
- **Supervisor, replaced but alive** (suspended, or cut off from the store): its next write is
  rejected because of its old fence. It leaves the agent alone if the new supervisor has the same
  agent, and terminates it otherwise.
- **Store**: the agent continues. Heartbeats and records are retried. If another machine may start
  the run, the supervisor stops its agent once the lease has expired.
- **Machine**: after a reboot the boot id in the store no longer matches, and a recovery ends or
  restarts the run. If the machine stays away, the lease expires; another machine then requeues the
  run, if the restart policy allows it, or marks it as interrupted.
"""
