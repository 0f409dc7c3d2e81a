// The definitions of Corral's tables for drizzle.
import { integer, sqliteTable, text } from 'drizzle-orm/sqlite-core';

const texts = (...names) => Object.fromEntries(names.map((name) => [name, text()]));
const numbers = (...names) => Object.fromEntries(names.map((name) => [name, integer()]));
const seq = () => ({ seq: integer().primaryKey() });
const id = () => ({ id: text().primaryKey() });

export const letters = sqliteTable('letters', {
  ...seq(), ...texts('mailbox', 'sender', 'project_id', 'key', 'state', 'owner', 'last_error'),
  body: text({ mode: 'json' }),
  ...numbers('rank', 'due_at', 'queue_at', 'expires_at', 'fence', 'attempts', 'created_at', 'ended_at'),
});
export const events = sqliteTable('events', {
  ...seq(), ...numbers('at'), ...texts('actor', 'kind', 'verb', 'subject', 'project_id', 'data'),
});
export const sessions = sqliteTable('sessions', {
  ...id(), ...texts('state'), ...numbers('turns', 'updated_at'),
});
export const turns = sqliteTable('turns', {
  ...seq(), ...texts('session_id', 'role', 'content', 'tool_call_id', 'tool_name', 'arguments',
    'result', 'agent_id', 'run_id', 'key', 'meta'),
  ...numbers('number', 'is_error', 'input_tokens', 'output_tokens', 'at'),
});
export const locks = sqliteTable('locks', {
  ...seq(), ...texts('state', 'project_id', 'path', 'path_prefix', 'mode', 'owner', 'run_id', 'reason',
    'ended_by'),
  ...numbers('ttl_ms', 'lease_until', 'notify', 'created_at', 'held_at', 'ended_at'),
});
export const tasks = sqliteTable('tasks', {
  ...id(), ...texts('project_id', 'key', 'state', 'role', 'title', 'description', 'files',
    'check_command', 'lead', 'assignee_id', 'agent_id', 'run_id', 'dir', 'conflicts_with_id', 'blocked_by_id',
    'evidence', 'reason', 'created_by'),
  ...numbers('priority', 'fence', 'lease_until', 'attempts', 'open_dependencies', 'failed_dependencies',
    'check_lease_until', 'created_at', 'ready_at', 'started_at', 'submitted_at', 'ended_at', 'archived_at'),
});
export const notes = sqliteTable('notes', {
  ...id(), ...texts('scope', 'project_id', 'category', 'key', 'text', 'source', 'supersedes', 'state'),
  ...numbers('confidence', 'uses', 'created_at', 'ended_at'),
});
export const passages = sqliteTable('passages', {
  ...seq(), ...texts('kind', 'subject', 'project_id', 'text'), ...numbers('place', 'at'),
});
export const runs = sqliteTable('runs', {
  ...id(), ...texts('state', 'project_id', 'provider', 'mode', 'command', 'args', 'cwd', 'host',
    'boot_id', 'start_token'),
  ...numbers('pid', 'fence', 'attempts', 'quick_failures', 'due_at', 'output_bytes', 'created_at',
    'started_at', 'seen_at', 'exit_code', 'ended_at'),
});
export const projects = sqliteTable('projects', { ...id(), ...numbers('last_run_at') });
