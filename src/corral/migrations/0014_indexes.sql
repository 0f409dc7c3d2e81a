-- How many requests of an agent wait is asked whenever it makes one, however many it has made.
CREATE INDEX requests_waiting_of_agent ON requests (agent_id) WHERE state = 'waiting';

-- What a task cost lasts until its run began the next one.
CREATE INDEX tasks_by_run ON tasks (run_id, started_at, id) WHERE run_id IS NOT NULL;

-- Nobody asks by these.
DROP INDEX runs_by_parent;
DROP INDEX verdicts_of_run;
DROP INDEX counters_by_age;
