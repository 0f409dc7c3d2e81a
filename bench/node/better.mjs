// better-sqlite3 alone, with statements that are prepared once.
const LETTER = `seq, mailbox, sender, project_id, key, body, -rank AS priority, state, due_at,
  queue_at, expires_at, owner, fence, attempts, last_error, created_at, ended_at`;

export function jobs(sqlite, { session, project, actor, mailbox, lease, body, words }) {
  const event = sqlite.prepare(`INSERT INTO events (at, actor, kind, verb, subject, project_id, data)
    VALUES (?, ?, ?, ?, ?, ?, ?)`);
  const insertEvent = (kind, verb, subject, project_id = null, data = null) =>
    event.run(Date.now(), actor, kind, verb, subject, project_id, data);
  const inTransaction = (work) => sqlite.transaction(work).immediate;

  const letter = sqlite.prepare(`INSERT INTO letters
    (mailbox, body, rank, state, due_at, queue_at, fence, attempts, created_at)
    VALUES (:mailbox, :body, 0, 'waiting', :now, :now, 0, 0, :now)`);
  const put = inTransaction(() => {
    const row = { mailbox, body: JSON.stringify(body), now: Date.now() };
    insertEvent('letter', 'put', `let_${letter.run(row).lastInsertRowid}`);
  });
  const claim = sqlite.prepare(`UPDATE letters
    SET owner = 'worker', fence = fence + 1, attempts = attempts + 1, due_at = :until,
      queue_at = :until
    WHERE seq = (SELECT seq FROM letters
      WHERE mailbox = :mailbox AND state = 'waiting' AND queue_at <= :now AND due_at <= :now
      ORDER BY rank, queue_at, seq LIMIT 1)
    RETURNING ${LETTER}`);
  const done = sqlite.prepare(`UPDATE letters SET state = 'done', ended_at = ?
    WHERE seq = ? AND fence = ? AND state IN ('waiting', 'unconfirmed')`);
  const ack = inTransaction(({ seq, fence }) => {
    if (!done.run(Date.now(), seq, fence).changes) throw new Error('held by another');
    insertEvent('letter', 'ack', `let_${seq}`);
  });
  const newest = sqlite.prepare(`SELECT ${LETTER} FROM letters ORDER BY seq DESC LIMIT 50`);

  const count = sqlite.prepare(`UPDATE sessions SET turns = turns + 1, updated_at = ?
    WHERE id = ? AND state = 'open' RETURNING turns`);
  const turn = sqlite.prepare(`INSERT INTO turns (session_id, number, role, content, is_error, at)
    VALUES (?, ?, 'user', ?, 0, ?)`);
  const append = inTransaction(() => {
    const now = Date.now();
    turn.run(session, count.get(now, session).turns, words, now);
  });
  const last = sqlite.prepare(`SELECT * FROM turns WHERE session_id = ?
    ORDER BY number DESC LIMIT 50`);
  const events = sqlite.prepare('SELECT * FROM events ORDER BY seq DESC LIMIT 50');

  const near = sqlite.prepare(`SELECT * FROM locks
    WHERE project_id = :project AND ended_at IS NULL AND lease_until > :now
      AND path_prefix IN ('', 'src/', :path || '/') AND owner <> 'agent:ada'`);
  const hold = sqlite.prepare(`INSERT INTO locks (project_id, path, path_prefix, mode, owner, ttl_ms,
      lease_until, notify, created_at, held_at, state)
    VALUES (:project, :path, :path || '/', 'exclusive', 'agent:ada', 300000, :now + 300000, 0,
      :now, :now, 'held')`);
  const acquire = inTransaction((path) => {
    const values = { project, path, now: Date.now() };
    if (near.all(values).length) throw new Error('held by another');
    const seq = hold.run(values).lastInsertRowid;
    insertEvent('lock', 'acquire', `lck_${seq}`, project, JSON.stringify({ path }));
    return seq;
  });
  const free = sqlite.prepare(`UPDATE locks SET state = 'released', ended_at = :now,
    ended_by = 'agent:ada' WHERE seq = :seq AND state = 'held' AND lease_until > :now`);
  const release = inTransaction((seq, path) => {
    if (!free.run({ seq, now: Date.now() }).changes) throw new Error('lost');
    insertEvent('lock', 'release', `lck_${seq}`, project, JSON.stringify({ path }));
  });

  const claimStatement = sqlite.prepare(`UPDATE tasks SET state = 'running', agent_id = 'ada',
      fence = fence + 1, attempts = attempts + 1, lease_until = :now + :lease, started_at = :now
    WHERE id = (SELECT id FROM tasks
      WHERE project_id = :project AND state = 'ready' AND conflicts_with_id IS NULL AND assignee_id IS NULL
        AND role = 'builder' ORDER BY priority DESC, ready_at, id LIMIT 1) RETURNING *`);
  const releaseStatement = sqlite.prepare(`UPDATE tasks SET state = 'ready', agent_id = NULL,
      lease_until = NULL, attempts = attempts - 1, ready_at = ?
    WHERE id = ? AND state = 'running' AND fence = ?`);
  const claimTask = inTransaction(() => {
    const task = claimStatement.get({ project, lease, now: Date.now() });
    insertEvent('task', 'claim', task.id, project);
    return task;
  });
  const releaseTask = inTransaction(({ id, fence }) => {
    if (!releaseStatement.run(Date.now(), id, fence).changes) throw new Error('held by another');
    insertEvent('task', 'release', id, project);
    insertEvent('task', 'ready', id, project);
  });

  const ids = (prefix) => { let n = Date.now(); return () => `${prefix}_${n++}`; };
  const noteId = ids('nte'), runId = ids('run');
  const insertNote = sqlite.prepare(`INSERT INTO notes (id, scope, project_id, category, key, text,
      source, confidence, uses, supersedes, created_at, state)
    VALUES (?, ?, ?, 'pattern', 'bench', ?, ?, 100, 0, ?, ?, 'current')`);
  const supersede = sqlite.prepare(`UPDATE notes SET state = 'superseded', ended_at = ?
    WHERE scope = ? AND key = 'bench' AND state = 'current' RETURNING id`);
  const removePassage = sqlite.prepare("DELETE FROM passages WHERE subject = ? AND kind = 'note'");
  const passage = sqlite.prepare(`INSERT INTO passages (kind, subject, location, project_id, at, text)
    VALUES ('note', ?, 0, ?, ?, ?)`);
  const addNote = inTransaction(() => {
    const id = noteId(), now = Date.now(), scope = `project:${project}`;
    const before = supersede.get(now, scope)?.id ?? null;
    if (before) {
      insertEvent('note', 'supersede', before, project);
      removePassage.run(before);
    }
    insertNote.run(id, scope, project, words, actor, before, now);
    insertEvent('note', 'add', id, project);
    passage.run(id, project, now, words);
  });

  const run = sqlite.prepare(`INSERT INTO runs (id, state, project_id, provider, mode, command, args,
      cwd, host, boot_id, pid, start_token, fence, attempts, quick_failures, due_at, output_bytes,
      created_at, started_at, seen_at)
    VALUES (:id, 'running', :project, 'plain', 'recorded', 'node', '["x"]', '/', 'here', 'boot',
      :pid, '1', 1, 1, 0, :now, 0, :now, :now, :now)`);
  const touch = sqlite.prepare('UPDATE projects SET last_run_at = ? WHERE id = ?');
  const begin = inTransaction(() => {
    const id = runId(), now = Date.now();
    run.run({ id, project, pid: process.pid, now });
    insertEvent('run', 'record', id, project);
    touch.run(now, project);
    insertEvent('project', 'touch', project, project);
    return id;
  });
  const end = sqlite.prepare(`UPDATE runs SET state = 'completed', exit_code = 0, ended_at = ?
    WHERE id = ? AND state = 'running'`);
  const finish = inTransaction((id) => {
    if (!end.run(Date.now(), id).changes) throw new Error('ended before');
    insertEvent('run', 'finish', id, project);
  });

  const read = (row) => ({ ...row, body: JSON.parse(row.body) });
  return {
    'put a letter': () => put(),
    'claim + ack': () => ack(read(claim.get({ mailbox, now: Date.now(), until: Date.now() + lease }))),
    'the newest 50 letters': () => { newest.all().map(read); },
    'append a turn': () => append(),
    'the last 50 turns': () => { last.all(session); },
    'the newest 50 events': () => { events.all(); },
    'acquire + release a lock': (n) => release(acquire(`src/${n}.py`), `src/${n}.py`),
    'claim + release a task': () => releaseTask(claimTask()),
    'add a note': () => addNote(),
    'record + finish a run': () => finish(begin()),
  };
}
