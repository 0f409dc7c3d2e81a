-- Which run a change came from. An actor may be several runs' agent, and a program below a run may
-- call itself anything; the run is found by the operating system's record of its processes.

-- the run whose process made the change; null: no process of a run
ALTER TABLE events ADD COLUMN run_id {key};
