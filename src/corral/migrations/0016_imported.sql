-- When the row was imported from another tool; null: Corral made it. Retention leaves imported rows
-- alone until `imports.retention` is switched on.
ALTER TABLE letters ADD COLUMN imported_at {integer};
ALTER TABLE events ADD COLUMN imported_at {integer};
ALTER TABLE schedules ADD COLUMN imported_at {integer};
ALTER TABLE runs ADD COLUMN imported_at {integer};
ALTER TABLE sessions ADD COLUMN imported_at {integer};
ALTER TABLE charges ADD COLUMN imported_at {integer};
ALTER TABLE tasks ADD COLUMN imported_at {integer};
ALTER TABLE delegations ADD COLUMN imported_at {integer};
ALTER TABLE plans ADD COLUMN imported_at {integer};
ALTER TABLE locks ADD COLUMN imported_at {integer};
ALTER TABLE touches ADD COLUMN imported_at {integer};
ALTER TABLE questions ADD COLUMN imported_at {integer};
ALTER TABLE decisions ADD COLUMN imported_at {integer};
ALTER TABLE groups ADD COLUMN imported_at {integer};
ALTER TABLE posts ADD COLUMN imported_at {integer};
ALTER TABLE reactions ADD COLUMN imported_at {integer};
ALTER TABLE notes ADD COLUMN imported_at {integer};
ALTER TABLE races ADD COLUMN imported_at {integer};

-- Rows of earlier imports are exempt too.
UPDATE letters SET imported_at = 0 WHERE seq IN (
    SELECT CAST(substr(id, 5) AS {integer}) FROM origins WHERE became = 'letters' AND id LIKE 'let_%');
UPDATE schedules SET imported_at = 0 WHERE id IN (SELECT id FROM origins WHERE became = 'schedules');
UPDATE runs SET imported_at = 0 WHERE id IN (SELECT id FROM origins WHERE became = 'runs');
UPDATE sessions SET imported_at = 0 WHERE id IN (
    SELECT id FROM origins WHERE became = 'sessions' UNION SELECT session_id FROM imports);
UPDATE tasks SET imported_at = 0 WHERE id IN (SELECT id FROM origins WHERE became = 'tasks');
UPDATE delegations SET imported_at = 0 WHERE id IN (
    SELECT id FROM origins WHERE became = 'delegations');
UPDATE plans SET imported_at = 0 WHERE subject IN (SELECT id FROM origins WHERE became = 'plans');
UPDATE questions SET imported_at = 0 WHERE id IN (SELECT id FROM origins WHERE became = 'questions');
UPDATE decisions SET imported_at = 0 WHERE id IN (SELECT id FROM origins WHERE became = 'decisions');
UPDATE groups SET imported_at = 0 WHERE id IN (SELECT id FROM origins WHERE became = 'groups');
UPDATE posts SET imported_at = 0 WHERE id IN (SELECT id FROM origins WHERE became = 'posts');
UPDATE reactions SET imported_at = 0 WHERE post_id IN (
    SELECT id FROM origins WHERE became = 'posts');
UPDATE notes SET imported_at = 0 WHERE id IN (SELECT id FROM origins WHERE became = 'notes');
UPDATE races SET imported_at = 0 WHERE id IN (SELECT id FROM origins WHERE became = 'races');
UPDATE locks SET imported_at = 0 WHERE ended_by = 'import';
UPDATE events SET imported_at = 0 WHERE kind = 'activity';
UPDATE charges SET imported_at = 0 WHERE seq IN (
        SELECT CAST(substr(id, 5) AS {integer}) FROM origins WHERE became = 'charges' AND id LIKE 'chg_%')
    OR session_id IN (SELECT session_id FROM imports)
    OR run_id IN (SELECT id FROM origins WHERE became = 'runs');

-- Retention passes over imported rows within the index, without reading them.
DROP INDEX runs_ended;
CREATE INDEX runs_ended ON runs (ended_at, imported_at) WHERE ended_at IS NOT NULL;
DROP INDEX sessions_closed;
CREATE INDEX sessions_closed ON sessions (closed_at, id, imported_at) WHERE closed_at IS NOT NULL;
DROP INDEX tasks_ended;
CREATE INDEX tasks_ended ON tasks (ended_at, id, imported_at) WHERE ended_at IS NOT NULL;

{views_with_added_columns};
