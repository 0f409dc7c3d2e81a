// drizzle over better-sqlite3, with queries built at each call, as its users write them.
import { and, desc, eq, gt, inArray, isNull, lte, ne, sql } from 'drizzle-orm';
import { drizzle } from 'drizzle-orm/better-sqlite3';
import * as t from './tables.mjs';

export function jobs(sqlite, { session, project, actor, mailbox, lease, body, words }) {
  const db = drizzle(sqlite);
  const inTransaction = (work) => db.transaction(work, { behavior: 'immediate' });
  const insertEvent = (tx, kind, verb, subject, project_id = null, data = null) =>
    tx.insert(t.events)
      .values({ at: Date.now(), actor, kind, verb, subject, project_id, data }).run();
  const one = ({ changes }) => { if (!changes) throw new Error('held by another'); };
  const ids = (prefix) => { let n = Date.now(); return () => `${prefix}_${n++}`; };
  const noteId = ids('nte'), runId = ids('run');

  const put = () => inTransaction((tx) => {
    const now = Date.now();
    const { lastInsertRowid } = tx.insert(t.letters).values({
      mailbox, body, rank: 0, state: 'waiting', due_at: now, queue_at: now, fence: 0, attempts: 0,
      created_at: now,
    }).run();
    insertEvent(tx, 'letter', 'put', `let_${lastInsertRowid}`);
  });
  const claim = () => {
    const now = Date.now();
    const next = db.select({ seq: t.letters.seq }).from(t.letters).where(and(
      eq(t.letters.mailbox, mailbox), eq(t.letters.state, sql.raw("'waiting'")),
      lte(t.letters.queue_at, now), lte(t.letters.due_at, now),
    )).orderBy(t.letters.rank, t.letters.queue_at, t.letters.seq).limit(1);
    return db.update(t.letters).set({
      owner: 'worker', fence: sql`${t.letters.fence} + 1`, attempts: sql`${t.letters.attempts} + 1`,
      due_at: now + lease, queue_at: now + lease,
    }).where(eq(t.letters.seq, next)).returning().get();
  };
  const ack = ({ seq, fence }) => inTransaction((tx) => {
    one(tx.update(t.letters).set({ state: 'done', ended_at: Date.now() }).where(and(
      eq(t.letters.seq, seq), eq(t.letters.fence, fence),
      inArray(t.letters.state, ['waiting', 'unconfirmed']),
    )).run());
    insertEvent(tx, 'letter', 'ack', `let_${seq}`);
  });

  const append = () => inTransaction((tx) => {
    const now = Date.now();
    const { turns } = tx.update(t.sessions)
      .set({ turns: sql`${t.sessions.turns} + 1`, updated_at: now })
      .where(and(eq(t.sessions.id, session), eq(t.sessions.state, 'open')))
      .returning({ turns: t.sessions.turns }).get();
    tx.insert(t.turns).values({
      session_id: session, number: turns, role: 'user', content: words, is_error: 0, at: now,
    }).run();
  });

  const acquire = (path) => inTransaction((tx) => {
    const now = Date.now();
    const near = tx.select().from(t.locks).where(and(
      eq(t.locks.project_id, project), isNull(t.locks.ended_at), gt(t.locks.lease_until, now),
      inArray(t.locks.path_prefix, ['', 'src/', `${path}/`]), ne(t.locks.owner, 'agent:ada'),
    )).all();
    if (near.length) throw new Error('held by another');
    const { lastInsertRowid: seq } = tx.insert(t.locks).values({
      project_id: project, path, path_prefix: `${path}/`, mode: 'exclusive', owner: 'agent:ada',
      ttl_ms: 300_000, lease_until: now + 300_000, notify: 0, created_at: now, held_at: now,
      state: 'held',
    }).run();
    insertEvent(tx, 'lock', 'acquire', `lck_${seq}`, project, JSON.stringify({ path }));
    return seq;
  });
  const release = (seq, path) => inTransaction((tx) => {
    const now = Date.now();
    one(tx.update(t.locks).set({ state: 'released', ended_at: now, ended_by: 'agent:ada' })
      .where(and(eq(t.locks.seq, Number(seq)), eq(t.locks.state, 'held'),
        gt(t.locks.lease_until, now))).run());
    insertEvent(tx, 'lock', 'release', `lck_${seq}`, project, JSON.stringify({ path }));
  });

  const claimTask = () => inTransaction((tx) => {
    const now = Date.now();
    const next = tx.select({ id: t.tasks.id }).from(t.tasks).where(and(
      eq(t.tasks.project_id, project), eq(t.tasks.state, sql.raw("'ready'")), isNull(t.tasks.conflicts_with_id),
      isNull(t.tasks.assignee_id), eq(t.tasks.role, 'builder'),
    )).orderBy(desc(t.tasks.priority), t.tasks.ready_at, t.tasks.id).limit(1);
    const task = tx.update(t.tasks).set({
      state: 'running', agent_id: 'ada', fence: sql`${t.tasks.fence} + 1`,
      attempts: sql`${t.tasks.attempts} + 1`, lease_until: now + lease, started_at: now,
    }).where(eq(t.tasks.id, next)).returning().get();
    insertEvent(tx, 'task', 'claim', task.id, project);
    return task;
  });
  const releaseTask = ({ id, fence }) => inTransaction((tx) => {
    one(tx.update(t.tasks).set({
      state: 'ready', agent_id: null, lease_until: null, attempts: sql`${t.tasks.attempts} - 1`,
      ready_at: Date.now(),
    }).where(and(eq(t.tasks.id, id), eq(t.tasks.state, 'running'), eq(t.tasks.fence, fence))).run());
    insertEvent(tx, 'task', 'release', id, project);
    insertEvent(tx, 'task', 'ready', id, project);
  });

  const addNote = () => inTransaction((tx) => {
    const id = noteId(), now = Date.now(), scope = `project:${project}`;
    const before = tx.update(t.notes).set({ state: 'superseded', ended_at: now }).where(and(
      eq(t.notes.scope, scope), eq(t.notes.key, 'bench'), eq(t.notes.state, sql.raw("'current'")),
    )).returning({ id: t.notes.id }).get()?.id ?? null;
    if (before) {
      insertEvent(tx, 'note', 'supersede', before, project);
      tx.delete(t.passages)
        .where(and(eq(t.passages.subject, before), eq(t.passages.kind, 'note'))).run();
    }
    tx.insert(t.notes).values({
      id, scope, project_id: project, category: 'pattern', key: 'bench', text: words,
      source: actor, confidence: 100, uses: 0, supersedes: before, created_at: now,
      state: 'current',
    }).run();
    insertEvent(tx, 'note', 'add', id, project);
    tx.insert(t.passages)
      .values({ kind: 'note', subject: id, place: 0, project_id: project, at: now, text: words })
      .run();
  });

  const begin = () => inTransaction((tx) => {
    const id = runId(), now = Date.now();
    tx.insert(t.runs).values({
      id, state: 'running', project_id: project, provider: 'plain', mode: 'recorded',
      command: 'node', args: '["x"]', cwd: '/', host: 'here', boot_id: 'boot', pid: process.pid,
      start_token: '1', fence: 1, attempts: 1, quick_failures: 0, due_at: now, output_bytes: 0,
      created_at: now, started_at: now, seen_at: now,
    }).run();
    insertEvent(tx, 'run', 'record', id, project);
    tx.update(t.projects).set({ last_run_at: now }).where(eq(t.projects.id, project)).run();
    insertEvent(tx, 'project', 'touch', project, project);
    return id;
  });
  const finish = (id) => inTransaction((tx) => {
    one(tx.update(t.runs).set({ state: 'completed', exit_code: 0, ended_at: Date.now() })
      .where(and(eq(t.runs.id, id), eq(t.runs.state, 'running'))).run());
    insertEvent(tx, 'run', 'finish', id, project);
  });

  return {
    'put a letter': put,
    'claim + ack': () => ack(claim()),
    'the newest 50 letters': () => {
      db.select().from(t.letters).orderBy(desc(t.letters.seq)).limit(50).all();
    },
    'append a turn': append,
    'the last 50 turns': () => {
      db.select().from(t.turns).where(eq(t.turns.session_id, session))
        .orderBy(desc(t.turns.number)).limit(50).all();
    },
    'the newest 50 events': () => {
      db.select().from(t.events).orderBy(desc(t.events.seq)).limit(50).all();
    },
    'acquire + release a lock': (n) => release(acquire(`src/${n}.py`), `src/${n}.py`),
    'claim + release a task': () => releaseTask(claimTask()),
    'add a note': addNote,
    'record + finish a run': () => finish(begin()),
  };
}
