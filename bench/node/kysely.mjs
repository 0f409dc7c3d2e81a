// kysely over better-sqlite3, with queries built at each call, as its users write them.
import { Kysely, SqliteDialect, sql } from 'kysely';

export function jobs(sqlite, { session, project, actor, mailbox, lease, body, words }) {
  const db = new Kysely({ dialect: new SqliteDialect({ database: sqlite }) });
  const inTransaction = (work) => db.transaction().execute(work);
  const insertEvent = (tx, kind, verb, subject, project_id = null, data = null) =>
    tx.insertInto('events')
      .values({ at: Date.now(), actor, kind, verb, subject, project_id, data }).execute();
  const one = ({ numUpdatedRows }) => { if (!numUpdatedRows) throw new Error('held by another'); };
  const ids = (prefix) => { let n = Date.now(); return () => `${prefix}_${n++}`; };
  const noteId = ids('nte'), runId = ids('run');
  const read = (row) => ({ ...row, body: JSON.parse(row.body) });

  const put = () => inTransaction(async (tx) => {
    const now = Date.now();
    const { insertId } = await tx.insertInto('letters').values({
      mailbox, body: JSON.stringify(body), rank: 0, state: 'waiting', due_at: now, queue_at: now,
      fence: 0, attempts: 0, created_at: now,
    }).executeTakeFirst();
    await insertEvent(tx, 'letter', 'put', `let_${insertId}`);
  });
  const claim = async () => {
    const now = Date.now();
    return read(await db.updateTable('letters').set((eb) => ({
      owner: 'worker', fence: eb('fence', '+', 1), attempts: eb('attempts', '+', 1),
      due_at: now + lease, queue_at: now + lease,
    })).where('seq', '=', (eb) => eb.selectFrom('letters').select('seq')
      .where('mailbox', '=', mailbox).where('state', '=', sql.lit('waiting'))
      .where('queue_at', '<=', now).where('due_at', '<=', now)
      .orderBy('rank').orderBy('queue_at').orderBy('seq').limit(1))
      .returningAll().executeTakeFirstOrThrow());
  };
  const ack = ({ seq, fence }) => inTransaction(async (tx) => {
    one(await tx.updateTable('letters').set({ state: 'done', ended_at: Date.now() })
      .where('seq', '=', seq).where('fence', '=', fence).where('state', 'in', ['waiting', 'unconfirmed'])
      .executeTakeFirst());
    await insertEvent(tx, 'letter', 'ack', `let_${seq}`);
  });

  const append = () => inTransaction(async (tx) => {
    const now = Date.now();
    const { turns } = await tx.updateTable('sessions')
      .set((eb) => ({ turns: eb('turns', '+', 1), updated_at: now }))
      .where('id', '=', session).where('state', '=', 'open')
      .returning('turns').executeTakeFirstOrThrow();
    await tx.insertInto('turns').values({
      session_id: session, number: turns, role: 'user', content: words, is_error: 0, at: now,
    }).execute();
  });

  const acquire = (path) => inTransaction(async (tx) => {
    const now = Date.now();
    const near = await tx.selectFrom('locks').selectAll()
      .where('project_id', '=', project).where('ended_at', 'is', null)
      .where('lease_until', '>', now).where('path_prefix', 'in', ['', 'src/', `${path}/`])
      .where('owner', '<>', 'agent:ada').execute();
    if (near.length) throw new Error('held by another');
    const { insertId: seq } = await tx.insertInto('locks').values({
      project_id: project, path, path_prefix: `${path}/`, mode: 'exclusive', owner: 'agent:ada',
      ttl_ms: 300_000, lease_until: now + 300_000, notify: 0, created_at: now, held_at: now,
      state: 'held',
    }).executeTakeFirst();
    await insertEvent(tx, 'lock', 'acquire', `lck_${seq}`, project, JSON.stringify({ path }));
    return seq;
  });
  const release = (seq, path) => inTransaction(async (tx) => {
    const now = Date.now();
    one(await tx.updateTable('locks')
      .set({ state: 'released', ended_at: now, ended_by: 'agent:ada' })
      .where('seq', '=', seq).where('state', '=', 'held').where('lease_until', '>', now)
      .executeTakeFirst());
    await insertEvent(tx, 'lock', 'release', `lck_${seq}`, project, JSON.stringify({ path }));
  });

  const claimTask = () => inTransaction(async (tx) => {
    const now = Date.now();
    const task = await tx.updateTable('tasks').set((eb) => ({
      state: 'running', agent_id: 'ada', fence: eb('fence', '+', 1),
      attempts: eb('attempts', '+', 1), lease_until: now + lease, started_at: now,
    })).where('id', '=', (eb) => eb.selectFrom('tasks').select('id')
      .where('project_id', '=', project).where('state', '=', sql.lit('ready'))
      .where('conflicts_with_id', 'is', null).where('assignee_id', 'is', null).where('role', '=', 'builder')
      .orderBy('priority', 'desc').orderBy('ready_at').orderBy('id').limit(1))
      .returningAll().executeTakeFirstOrThrow();
    await insertEvent(tx, 'task', 'claim', task.id, project);
    return task;
  });
  const releaseTask = ({ id, fence }) => inTransaction(async (tx) => {
    one(await tx.updateTable('tasks').set((eb) => ({
      state: 'ready', agent_id: null, lease_until: null, attempts: eb('attempts', '-', 1),
      ready_at: Date.now(),
    })).where('id', '=', id).where('state', '=', 'running').where('fence', '=', fence)
      .executeTakeFirst());
    await insertEvent(tx, 'task', 'release', id, project);
    await insertEvent(tx, 'task', 'ready', id, project);
  });

  const addNote = () => inTransaction(async (tx) => {
    const id = noteId(), now = Date.now(), scope = `project:${project}`;
    const found = await tx.updateTable('notes').set({ state: 'superseded', ended_at: now })
      .where('scope', '=', scope).where('key', '=', 'bench').where('state', '=', sql.lit('current'))
      .returning('id').executeTakeFirst();
    const before = found?.id ?? null;
    if (before) {
      await insertEvent(tx, 'note', 'supersede', before, project);
      await tx.deleteFrom('passages').where('subject', '=', before).where('kind', '=', 'note')
        .execute();
    }
    await tx.insertInto('notes').values({
      id, scope, project_id: project, category: 'pattern', key: 'bench', text: words,
      source: actor, confidence: 100, uses: 0, supersedes: before, created_at: now,
      state: 'current',
    }).execute();
    await insertEvent(tx, 'note', 'add', id, project);
    await tx.insertInto('passages')
      .values({ kind: 'note', subject: id, place: 0, project_id: project, at: now, text: words })
      .execute();
  });

  const begin = () => inTransaction(async (tx) => {
    const id = runId(), now = Date.now();
    await tx.insertInto('runs').values({
      id, state: 'running', project_id: project, provider: 'plain', mode: 'recorded',
      command: 'node', args: '["x"]', cwd: '/', host: 'here', boot_id: 'boot', pid: process.pid,
      start_token: '1', fence: 1, attempts: 1, quick_failures: 0, due_at: now, output_bytes: 0,
      created_at: now, started_at: now, seen_at: now,
    }).execute();
    await insertEvent(tx, 'run', 'record', id, project);
    await tx.updateTable('projects').set({ last_run_at: now }).where('id', '=', project).execute();
    await insertEvent(tx, 'project', 'touch', project, project);
    return id;
  });
  const finish = (id) => inTransaction(async (tx) => {
    one(await tx.updateTable('runs')
      .set({ state: 'completed', exit_code: 0, ended_at: Date.now() })
      .where('id', '=', id).where('state', '=', 'running').executeTakeFirst());
    await insertEvent(tx, 'run', 'finish', id, project);
  });

  return {
    'put a letter': put,
    'claim + ack': async () => ack(await claim()),
    'the newest 50 letters': async () => {
      const rows = await db.selectFrom('letters').selectAll().orderBy('seq', 'desc').limit(50)
        .execute();
      rows.map(read);
    },
    'append a turn': append,
    'the last 50 turns': () => db.selectFrom('turns').selectAll().where('session_id', '=', session)
      .orderBy('number', 'desc').limit(50).execute(),
    'the newest 50 events': () =>
      db.selectFrom('events').selectAll().orderBy('seq', 'desc').limit(50).execute(),
    'acquire + release a lock': async (n) => release(await acquire(`src/${n}.py`), `src/${n}.py`),
    'claim + release a task': async () => releaseTask(await claimTask()),
    'add a note': addNote,
    'record + finish a run': async () => finish(await begin()),
  };
}
