"""A long-used store: tens of thousands of rows, most of them history."""

from hashlib import sha256

import psycopg

import corral
from corral.db.sqlite_deferred_indexes import fill_deferred_indexes
from corral.db.statement import Statement

LETTERS = 30_000
BACKLOG = 2_000
MANY = 2_000

_SERIES = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"

_LETTER = (
    "INSERT INTO letters (mailbox, sender, key, body, rank, state, due_at, queue_at, expires_at,"
    " owner, fence, attempts, created_at, ended_at)"
)

# One statement per kind of row, in SQL that both engines understand.
# The hash of the secret of token 7: "crl_" and 7 as 64 hexadecimal digits.
_HASH = sha256(b"crl_" + b"7".rjust(64, b"0")).hexdigest()

_FILL = [
    # History: finished letters, in busy mailboxes and in many others.
    f"""{_LETTER}
    {_SERIES.format(count=LETTERS)}
    SELECT CASE i % 20 WHEN 0 THEN 'agent:busy' WHEN 1 THEN 'queue:busy'
           ELSE 'agent:a' || (i % 97) END,
        NULL, CASE i % 5 WHEN 0 THEN 'k-' || i END, '"x"', -(i % 3),
        CASE i % 50 WHEN 0 THEN 'dead' WHEN 1 THEN 'refused' WHEN 2 THEN 'expired' ELSE 'done' END,
        {{now}} - 1000 - i, {{now}} - 1000 - i, NULL, 'o', 1, 1, {{now}} - 2000 - i, {{now}} - i
    FROM n""",
    # A backlog that is due, and one for tomorrow; some letters expire.
    f"""{_LETTER}
    {_SERIES.format(count=BACKLOG)}
    SELECT CASE i % 2 WHEN 0 THEN 'agent:busy' ELSE 'queue:busy' END, NULL,
        'open-' || i, '"x"', -(i % 3), 'waiting',
        {{now}} + CASE i % 4 WHEN 0 THEN -i WHEN 1 THEN -i ELSE 86400000 + i END,
        {{now}} + CASE i % 4 WHEN 0 THEN -i WHEN 1 THEN -i ELSE 86400000 + i END,
        CASE i % 10 WHEN 0 THEN {{now}} + i - 20 END, NULL, 0, 0, {{now}} - i, NULL
    FROM n""",
    f"""INSERT INTO schedules (id, name, project_id, mailbox, body, priority, kind, rule, time_zone,
        anchor_at, misfire, overlap, state, next_at, script, created_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'sch_' || substr(i || 'x0000000000000000000000000', 1, 26),
        NULL, CASE i % 7 WHEN 0 THEN 'prj_' || (i % 100) END, 'agent:a' || (i % 97), '"x"', 0,
        CASE i % 2 WHEN 0 THEN 'once' ELSE 'every' END,
        CASE i % 2 WHEN 0 THEN '' ELSE '60000' END, 'UTC', {{now}} + i, 'latest', 'allow',
        CASE i % 4 WHEN 0 THEN 'active' WHEN 1 THEN 'paused' WHEN 2 THEN 'finished'
            ELSE 'cancelled' END,
        CASE i % 4 WHEN 0 THEN {{now}} + i - 20 END,
        CASE i % 9 WHEN 8 THEN 'true' END, {{now}} - i,
        CASE WHEN i % 4 > 1 THEN {{now}} - i END
    FROM n""",
    f"""INSERT INTO occurrences (id, schedule_id, scheduled_at, state, attempts, letter_id,
        created_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'occ_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'sch_' || substr((i % 40) || 'x0000000000000000000000000', 1, 26), i, 'put', 1, i,
        {{now}} - i, {{now}} - i
    FROM n""",
    f"""INSERT INTO host_requests
    (id, agent_id, action, arguments, effect, state, created_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'req_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'agt_' || substr((i % 90) || 'x0000000000000000000000000', 1, 26), 'create_agent', '{{}}',
        'x', CASE i % 50 WHEN 0 THEN 'waiting' ELSE 'done' END, {{now}} - i,
        CASE WHEN i % 50 > 0 THEN {{now}} - i END
    FROM n""",
    f"""INSERT INTO projects (id, dir, name, state, created_at, updated_at, last_run_at)
    {_SERIES.format(count=MANY)}
    SELECT 'prj_' || substr(i || 'x0000000000000000000000000', 1, 26),
        '/srv/' || i, 'p' || i, CASE i % 20 WHEN 0 THEN 'archived' ELSE 'active' END,
        {{now}} - i, {{now}} - i, CASE i % 2 WHEN 0 THEN {{now}} - i END
    FROM n""",
    f"""INSERT INTO nodes (id, name, boot_id, state, owner, fence, lease_until, slots, labels,
        joined_at, seen_at)
    {_SERIES.format(count=MANY)}
    SELECT 'nod_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'host' || (i % 50), 'boot' || i, CASE i % 40 WHEN 0 THEN 'up' ELSE 'left' END, 'd', 1,
        {{now}} + i, 1, '[]', {{now}} - i, {{now}} - i
    FROM n""",
    f"""INSERT INTO leaders (name, owner, fence, lease_until)
    {_SERIES.format(count=MANY)} SELECT 'loop' || i, 'd', 1, {{now}} + i FROM n""",
    f"""INSERT INTO settings (scope, name, value, updated_at, updated_by)
    {_SERIES.format(count=MANY)}
    SELECT 'agent:a' || i, 'mail.max_attempts', '3', {{now}}, 'user:x' FROM n""",
    f"""INSERT INTO outputs (run_id, state, host, folder, mode, bytes, sha256, dropped_bytes,
        reason, created_at, sealed_at, deleted_at)
    {_SERIES.format(count=MANY)}
    SELECT 'run_' || substr(i || 'x0000000000000000000000000', 1, 26),
        CASE i % 40 WHEN 0 THEN 'open' WHEN 1 THEN 'lost' WHEN 2 THEN 'deleted'
            WHEN 3 THEN 'deleted'
            ELSE 'sealed' END,
        'host' || (i % 3), CASE i % 40 WHEN 2 THEN NULL ELSE '/srv/' || i END, 'pipe', i, 'x', 0,
        NULL, {{now}} - i, {{now}} - i, NULL
    FROM n""",
    f"""INSERT INTO output_chunks (run_id, stream, number, data)
    {_SERIES.format(count=MANY)}
    SELECT 'run_' || substr((i / 4) || 'x0000000000000000000000000', 1, 26), 'output', i % 4,
        CAST('x' AS {{blob}})
    FROM n""",
    f"""INSERT INTO log_lines (run_id, at, level, message)
    {_SERIES.format(count=LETTERS)}
    SELECT 'run_' || (i % 1000), {{now}} - i,
        CASE i % 200 WHEN 0 THEN 'warn' WHEN 1 THEN 'error' WHEN 2 THEN 'info' ELSE 'debug' END, 'x'
    FROM n""",
    f"""INSERT INTO secrets (name, reference, updated_at, updated_by)
    {_SERIES.format(count=MANY)} SELECT 's' || i, 'env:X', {{now}}, 'user:x' FROM n""",
    f"""INSERT INTO runs (id, state, project_id, session_id, agent_id, provider, model, mode,
        command, args, cwd, fence, attempts, quick_failures, due_at, attention, output_bytes,
        tokens, cost_micros, created_at, started_at, ended_at)
    {_SERIES.format(count=LETTERS)}
    SELECT 'run_' || substr(i || 'x0000000000000000000000000', 1, 26),
        CASE WHEN i % 500 = 0 THEN 'running' WHEN i % 501 = 0 THEN 'queued'
             WHEN i % 20 = 1 THEN 'crashed' WHEN i % 20 = 2 THEN 'failed' ELSE 'completed' END,
        'prj_' || substr((i % 50) || 'x0000000000000000000000000', 1, 26), 'ses_' || (i % 997),
        'agt_' || substr((i % 7) || 'x0000000000000000000000000', 1, 26), 'claude',
        'm' || (i % 5), 'pipe', 'claude', '[]', '/srv', 1, 1, 0, 1,
        CASE i % 1000 WHEN 0 THEN 'stuck' END, 0, i, i, {{now}} - 60000 * i, {{now}} - 60000 * i,
        CASE WHEN i % 500 = 0 OR i % 501 = 0 THEN NULL ELSE {{now}} - 60000 * i + 5000 END
    FROM n""",
    f"""INSERT INTO charges (run_id, session_id, project_id, agent_id, provider, model, input,
        output, cache_read, cache_write, reasoning, cost_micros, source, prices_version, key, at)
    {_SERIES.format(count=LETTERS)}
    SELECT 'run_' || (i % 3000), 'ses_' || (i % 997), 'prj_' || (i % 499), 'agn_' || (i % 7),
        'claude', 'm' || (i % 5), 1, 1, 1, 1, 1, CASE WHEN i % 10 > 0 THEN i END,
        CASE WHEN i % 10 > 0 THEN 'provider' END, CASE WHEN i % 100 > 0 THEN 'v1' END, 'k-' || i,
        {{now}} - 60000 * i
    FROM n""",
    f"""INSERT INTO usage_totals (scope, day, charges, unpriced, input, output, cache_read,
        cache_write, reasoning, cost_micros, updated_at)
    {_SERIES.format(count=LETTERS)}
    SELECT CASE i % 3 WHEN 0 THEN 'run:run_' || i WHEN 1 THEN 'all' ELSE 'project:prj_1' END,
        CASE i % 3 WHEN 0 THEN '' ELSE '20' || (100000 + i) END, 1, 0, 1, 1, 1, 1, 1, 1, {{now}}
    FROM n""",
    f"""INSERT INTO usage_counters (name, input, output, cache_read, cache_write, reasoning,
        updated_at)
    {_SERIES.format(count=MANY)} SELECT 'c' || i, 1, 1, 1, 1, 1, {{now}} FROM n""",
    f"""INSERT INTO budgets (scope, period, limit_micros, updated_at, updated_by)
    {_SERIES.format(count=MANY)}
    SELECT 'project:prj_' || i, 'total', 1000000, {{now}}, 'user:x' FROM n""",
    f"""INSERT INTO budget_reservations (run_id, scope, period, day, amount_micros)
    {_SERIES.format(count=MANY)}
    SELECT 'run_' || i, 'project:prj_' || (i % 500), 'total', '', 1 FROM n""",
    f"""INSERT INTO alerts (id, state, kinds, target_kind, target, created_at, created_by, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'alr_' || substr(i || 'x0000000000000000000000000', 1, 26),
        CASE i % 40 WHEN 0 THEN 'active' ELSE 'removed' END, '["crashed"]', 'desktop', '',
        {{now}} - i, 'user:x', CASE WHEN i % 40 > 0 THEN {{now}} - i END
    FROM n""",
    f"""INSERT INTO tokens (id, name, state, scope, hash, created_at, created_by, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'tok_' || substr(i || 'x0000000000000000000000000', 1, 26), 't' || i,
        CASE i % 2 WHEN 1 THEN 'active' ELSE 'revoked' END, 'full',
        CASE i WHEN 7 THEN '{_HASH}' ELSE 'h' || i END, {{now}}, 'user:x',
        CASE i % 2 WHEN 0 THEN {{now}} END
    FROM n""",
    f"""INSERT INTO idempotency_keys (id, token_id, key, fingerprint, response, created_at)
    {_SERIES.format(count=MANY)}
    SELECT 'idk_' || i, 'tok_1', 'k' || i, 'f', '1', {{now}} FROM n""",
    f"""INSERT INTO agents (id, name, state, version, admin, created_at, updated_at)
    {_SERIES.format(count=MANY)}
    SELECT 'agt_' || substr(i || 'x0000000000000000000000000', 1, 26), 'a' || i,
        CASE i % 20 WHEN 0 THEN 'retired' ELSE 'active' END, 1, 0, {{now}}, {{now}} FROM n""",
    f"""INSERT INTO agent_versions (agent_id, number, limits, hash, created_at, created_by)
    {_SERIES.format(count=MANY)}
    SELECT 'agt_' || substr(i || 'x0000000000000000000000000', 1, 26), 1, '{{}}', 'h', {{now}}, 'u'
    FROM n""",
    f"""INSERT INTO tool_grants (agent_id, tool, allowed, updated_at, updated_by)
    {_SERIES.format(count=MANY)}
    SELECT 'agt_' || substr((i % 400) || 'x0000000000000000000000000', 1, 26), 't' || i, 1,
        {{now}}, 'u' FROM n""",
    f"""INSERT INTO questions (id, project_id, asker, key, text, options, free_text, answerers,
        state, deadline_at, created_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'qst_' || substr(i || 'x0000000000000000000000000', 1, 26),
        CASE i % 7 WHEN 0 THEN 'prj_' || (i % 100) END, 'agent:a' || (i % 97), 'k' || i, 'x', '[]',
        1, '[]', CASE i % 10 WHEN 0 THEN 'open' ELSE 'answered' END, {{now}} + i - 20, {{now}} - i,
        CASE WHEN i % 10 > 0 THEN {{now}} - i END
    FROM n""",
    f"""INSERT INTO decisions (id, project_id, author, key, category, title, rationale,
        alternatives, answerers, deadline_outcome, state, deadline_at, created_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'dec_' || substr(i || 'x0000000000000000000000000', 1, 26),
        CASE i % 7 WHEN 0 THEN 'prj_' || (i % 100) END, 'agent:a' || (i % 97), 'k' || i, 'general',
        'x', '', '[]', '[]', 'reject',
        CASE i % 10 WHEN 0 THEN 'proposed' WHEN 1 THEN 'recorded' ELSE 'confirmed' END,
        CASE i % 10 WHEN 0 THEN {{now}} + i - 20 END, {{now}} - i,
        CASE WHEN i % 10 > 1 THEN {{now}} - i END
    FROM n""",
    f"""INSERT INTO groups (id, name, project_id, kind, roles, state, posts, created_by, created_at,
        updated_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'grp_' || substr(i || 'x0000000000000000000000000', 1, 26), 'g' || i,
        CASE i % 7 WHEN 0 THEN 'prj_' || (i % 100) END, 'group', '[]',
        CASE i % 10 WHEN 0 THEN 'open' ELSE 'archived' END, 10, 'user:x', {{now}}, {{now}},
        CASE WHEN i % 10 > 0 THEN {{now}} - i END
    FROM n""",
    f"""INSERT INTO group_roles (role, group_id)
    {_SERIES.format(count=MANY)}
    SELECT 'r' || (i % 50), 'grp_' || substr(i || 'x0000000000000000000000000', 1, 26) FROM n
    WHERE i % 10 = 0""",
    f"""INSERT INTO group_members (group_id, name, role, read_number, joined_at)
    {_SERIES.format(count=MANY * 4)}
    SELECT 'grp_' || substr((i / 4) || 'x0000000000000000000000000', 1, 26),
        CASE i % 4 WHEN 0 THEN 'user:x' ELSE 'agent:a' || (i % 997) END, NULL, 3, {{now}} FROM n""",
    f"""INSERT INTO posts (id, group_id, number, author, text, key, at)
    {_SERIES.format(count=MANY * 10)}
    SELECT 'pst_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'grp_' || substr(((i - 1) / 10 + 1) || 'x0000000000000000000000000', 1, 26),
        (i - 1) % 10 + 1, 'user:x', 'text', 'k' || i, {{now}} FROM n""",
    f"""INSERT INTO reactions (post_id, emoji, member, at)
    {_SERIES.format(count=MANY * 4)}
    SELECT 'pst_' || substr((i / 4) || 'x0000000000000000000000000', 1, 26), '+' || (i % 4),
        'user:x', {{now}} FROM n""",
    f"""INSERT INTO channels (id, name, kind, policy, on_unconfirmed, config, secrets, state,
        created_at, created_by, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'chn_' || substr(i || 'x0000000000000000000000000', 1, 26), 'c' || i, 'terminal',
        'public', 'give_up', '{{}}', '{{}}', CASE i % 10 WHEN 0 THEN 'active' ELSE 'removed' END,
        {{now}}, 'u', CASE WHEN i % 10 > 0 THEN {{now}} END FROM n""",
    f"""INSERT INTO places (id, channel_id, platform_id, direct, state, created_at, updated_at)
    {_SERIES.format(count=MANY)}
    SELECT 'plc_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'chn_' || substr((i % 200 * 10) || 'x0000000000000000000000000', 1, 26), 'p' || i, 1,
        'open', {{now}}, {{now}} FROM n""",
    f"""INSERT INTO senders (id, channel_id, platform_id, person, state, created_at, updated_at)
    {_SERIES.format(count=MANY)}
    SELECT 'snd_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'chn_' || substr((i % 200 * 10) || 'x0000000000000000000000000', 1, 26), 's' || i,
        'n' || i, 'known', {{now}}, {{now}} FROM n""",
    f"""INSERT INTO people (name, role, created_at, updated_at)
    {_SERIES.format(count=MANY)}
    SELECT 'n' || i, 'member', {{now}}, {{now}} FROM n""",
    f"""INSERT INTO wirings (id, channel_id, place_id, agent_id, trigger, scope, unmatched, mode,
        priority, state, created_at, created_by, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'wir_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'chn_' || substr((i % 200 * 10) || 'x0000000000000000000000000', 1, 26),
        'plc_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'agt_' || substr((i % 50 + 1) || 'x0000000000000000000000000', 1, 26), 'always', 'all',
        'drop', 'shared', 0, CASE i % 10 WHEN 0 THEN 'active' ELSE 'removed' END, {{now}}, 'u',
        CASE WHEN i % 10 > 0 THEN {{now}} END FROM n""",
    f"""INSERT INTO destinations (id, agent_id, name, place_id, state, created_at, created_by)
    {_SERIES.format(count=MANY)}
    SELECT 'dst_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'agt_' || substr((i % 50 + 1) || 'x0000000000000000000000000', 1, 26), 'd' || i,
        'plc_' || substr(i || 'x0000000000000000000000000', 1, 26), 'granted', {{now}}, 'u'
    FROM n""",
    f"""INSERT INTO messages (channel_id, place_id, direction, kind, event_id, platform_ids,
        sender_id, run_id, text, state, routes, at, created_at, ended_at)
    {_SERIES.format(count=LETTERS)}
    SELECT 'chn_' || substr((i % 200 * 10) || 'x0000000000000000000000000', 1, 26),
        'plc_' || substr((i % 2000) || 'x0000000000000000000000000', 1, 26), 'in', 'text',
        'in:e' || i, '[]', 'snd_' || substr((i % 2000) || 'x0000000000000000000000000', 1, 26),
        CASE i % 5 WHEN 0 THEN 'run_' || i END, 'words',
        CASE i % 1000 WHEN 1 THEN 'held' WHEN 2 THEN 'queued' ELSE 'routed' END, '[]', {{now}},
        {{now}} - i, CASE WHEN i % 1000 NOT IN (1, 2) THEN {{now}} END FROM n""",
    f"""INSERT INTO conversations (session_id, agent_id, place_id, thread, run_id, claimed_letters,
        seen_seq, created_at)
    {_SERIES.format(count=MANY)}
    SELECT 'ses_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'agt_' || substr((i % 50 + 1) || 'x0000000000000000000000000', 1, 26),
        'plc_' || substr(i || 'x0000000000000000000000000', 1, 26), '',
        CASE i % 400 WHEN 1 THEN 'run_' || i END, '[]', 0, {{now}} FROM n""",
    f"""INSERT INTO question_cards (question_id, place_id, message_id, closed, created_at)
    {_SERIES.format(count=MANY)}
    SELECT 'qst_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'plc_' || substr(i || 'x0000000000000000000000000', 1, 26), i,
        CASE i % 400 WHEN 1 THEN 0 ELSE 1 END, {{now}} FROM n""",
    f"""INSERT INTO notes (id, scope, project_id, category, key, text, source, confidence, uses,
        state, expires_at, created_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'nte_' || substr(i || 'x0000000000000000000000000', 1, 26),
        CASE i % 4 WHEN 0 THEN 'everyone' WHEN 1 THEN 'project:prj_' || (i % 100)
            ELSE 'agent:a' || (i % 97) END,
        CASE i % 4 WHEN 1 THEN 'prj_' || (i % 100) END, 'general', 'k' || i, 'text ' || i, 'user:x',
        100, 0, CASE i % 10 WHEN 0 THEN 'current' ELSE 'superseded' END,
        CASE i % 5 WHEN 0 THEN {{now}} + i END, {{now}} - i,
        CASE WHEN i % 10 > 0 THEN {{now}} - i END
    FROM n""",
    # Many closed sessions, some open ones, and a few forks.
    f"""INSERT INTO sessions (id, project_id, agent_id, provider, provider_session, state, turns,
        cleared_turn, parent_id, parent_turn, created_at, updated_at, closed_at)
    {_SERIES.format(count=MANY)}
    SELECT 'ses_' || substr(i || 'x0000000000000000000000000', 1, 26),
        CASE i % 3 WHEN 0 THEN 'prj_' || substr((i % 100) ||
            'x0000000000000000000000000', 1, 26) END,
        CASE i % 3 WHEN 1 THEN 'agt_' || substr((i % 50) || 'x0000000000000000000000000', 1, 26)
        END, 'claude', 'p' || i, CASE i % 10 WHEN 0 THEN 'open' ELSE 'closed' END, 10, 0,
        CASE i % 40 WHEN 10 THEN
            'ses_' || substr((i - 10) || 'x0000000000000000000000000', 1, 26) END,
        CASE i % 40 WHEN 10 THEN 5 ELSE 0 END, {{now}}, {{now}},
        CASE i % 10 WHEN 0 THEN NULL ELSE {{now}} END
    FROM n""",
    f"""INSERT INTO turns (session_id, number, role, content, is_error, key, at)
    {_SERIES.format(count=MANY * 10)}
    SELECT 'ses_' || substr(((i - 1) / 10 + 1) || 'x0000000000000000000000000', 1, 26),
        (i - 1) % 10 + 1, 'user', 'text ' || i, 0, CASE i % 10 WHEN 1 THEN 'k' END, {{now}} FROM n
    WHERE ((i - 1) / 10 + 1) % 40 <> 10 OR (i - 1) % 10 >= 5""",
    f"""INSERT INTO session_state (session_id, name, value, updated_at)
    {_SERIES.format(count=MANY)}
    SELECT 'ses_' || substr(i || 'x0000000000000000000000000', 1, 26), 'a', '1', {{now}} FROM n""",
    f"""INSERT INTO handoffs (session_id, number, to_agent_id, policy, at_turn, from_turn,
        created_at)
    {_SERIES.format(count=MANY)}
    SELECT 'ses_' || substr(i || 'x0000000000000000000000000', 1, 26), 1, 'agt_1', 'all', 1, 0,
        {{now}} FROM n""",
    f"""INSERT INTO retros (session_id, number, body, created_at)
    {_SERIES.format(count=MANY)}
    SELECT 'ses_' || substr(i || 'x0000000000000000000000000', 1, 26), 1, '1', {{now}} FROM n""",
    f"""INSERT INTO locks (state, project_id, path, path_prefix, mode, owner, run_id, ttl_ms,
        lease_until, notify, created_at, held_at, ended_at)
    {_SERIES.format(count=LETTERS)}
    SELECT CASE WHEN i % 100 = 0 THEN 'held' WHEN i % 1000 = 1 THEN 'waiting' ELSE 'released' END,
        'prj_' || substr((i % 997) || 'x0000000000000000000000000', 1, 26), 'src/' || i,
        'src/' || i || '/', 'exclusive', 'agent:a' || (i % 500), 'run_' || i, 60000,
        {{now}} + i - 150, 0, {{now}} - i, {{now}} - i,
        CASE WHEN i % 100 = 0 OR i % 1000 = 1 THEN NULL ELSE {{now}} END
    FROM n""",
    f"""INSERT INTO file_touches (project_id, path, owner, count, first_at, last_at)
    {_SERIES.format(count=LETTERS)}
    SELECT 'prj_' || substr((i % 997) || 'x0000000000000000000000000', 1, 26), 'src/' || (i / 3),
        'agent:a' || i, 1, {{now}}, {{now}} FROM n""",
    # One project has a large active graph; many others have finished ones.
    f"""INSERT INTO tasks (id, project_id, key, state, role, title, files, priority, agent_id,
        run_id, assignee_id, fence, lease_until, attempts, open_dependencies, failed_dependencies,
        conflicts_with_id, blocked_by_id, check_command, created_at, created_by, ready_at,
        submitted_at, archived_at, ended_at)
    {_SERIES.format(count=LETTERS)}
    SELECT 'tsk_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'prj_' || substr(CASE WHEN i % 10 = 0 THEN 7 ELSE i % 500 END ||
            'x0000000000000000000000000', 1, 26), 'k' || i,
        CASE i % 30 WHEN 0 THEN 'ready' WHEN 3 THEN 'pending' WHEN 6 THEN 'blocked'
            ELSE CASE WHEN i % 1500 = 9 THEN 'running' WHEN i % 1500 = 12 THEN 'submitted'
            ELSE 'done' END END,
        CASE i % 4 WHEN 0 THEN 'builder' WHEN 1 THEN 'tester' WHEN 2 THEN 'writer' END, 't', '[]',
        i % 5, 'agt_' || substr((i % 50) || 'x0000000000000000000000000', 1, 26),
        'run_' || (i % 997),
        CASE i % 90 WHEN 0 THEN
            'agt_' || substr((i % 50) || 'x0000000000000000000000000', 1, 26) END,
        1, {{now}} + 60000 + i, 1, CASE i % 30 WHEN 3 THEN 1 ELSE 0 END, 0,
        CASE i % 300 WHEN 30 THEN 'tsk_' || i END, CASE i % 30 WHEN 6 THEN 'tsk_' || (i % 100) END,
        CASE i % 3 WHEN 0 THEN 'make' END, {{now}} - i, 'user:x', {{now}} - i, {{now}} - i,
        CASE WHEN i % 10 IN (1, 2, 4, 5, 7, 8) THEN {{now}} - i END,
        CASE WHEN i % 30 IN (0, 3, 6) OR i % 1500 IN (9, 12) THEN NULL ELSE {{now}} - i END
    FROM n""",
    f"""INSERT INTO task_dependencies (task_id, depends_on_id)
    {_SERIES.format(count=LETTERS)}
    SELECT 'tsk_' || substr((i + 3) || 'x0000000000000000000000000', 1, 26),
        'tsk_' || substr(i || 'x0000000000000000000000000', 1, 26) FROM n""",
    f"""INSERT INTO races (id, project_id, name, prompt, state, repository, subdirectory,
        managed_repository, base_commit, host, plan, created_at, created_by, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'rac_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'prj_' || substr((i % 500) || 'x0000000000000000000000000', 1, 26), 'r', 'p',
        CASE i % 20 WHEN 0 THEN 'active' ELSE 'completed' END, '/srv/r', '', 0, 'c', 'h',
        '{{}}', {{now}} - i, 'user:x', CASE i % 20 WHEN 0 THEN NULL ELSE {{now}} - i END
    FROM n""",
    f"""INSERT INTO rounds (id, race_id, project_id, number, state, base_commit, prompt, winner_id,
        needs_driver, host, fence, created_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'rnd_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'rac_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'prj_' || substr((i % 500) || 'x0000000000000000000000000', 1, 26), 1,
        CASE i % 20 WHEN 0 THEN 'running' ELSE 'completed' END, 'c', 'p',
        CASE i % 20 WHEN 0 THEN NULL ELSE 'att_' || i END,
        CASE i % 1000 WHEN 0 THEN 1 ELSE 0 END, 'h', 1, {{now}} - i,
        CASE i % 20 WHEN 0 THEN NULL ELSE {{now}} - i END
    FROM n""",
    f"""INSERT INTO attempts (id, race_id, round_id, project_id, number, state, agent, prompt,
        branch, worktree, run_id, try_number, checks, created_at, started_at, ended_at, cleaned_at)
    {_SERIES.format(count=MANY * 3)}
    SELECT 'att_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'rac_' || substr((i / 3) || 'x0000000000000000000000000', 1, 26),
        'rnd_' || substr((i / 3) || 'x0000000000000000000000000', 1, 26),
        'prj_' || substr((i % 500) || 'x0000000000000000000000000', 1, 26), i % 3 + 1,
        CASE i % 300 WHEN 0 THEN 'running' ELSE 'completed' END, 'a' || (i % 50), 'p', 'b',
        '/srv/w/' || i, 'run_' || i, 1, '[]', {{now}} - i, {{now}} - i,
        CASE i % 300 WHEN 0 THEN NULL ELSE {{now}} - i END,
        CASE i % 100 WHEN 0 THEN NULL ELSE {{now}} END
    FROM n""",
    f"""INSERT INTO verdicts (id, race_id, round_id, project_id, number, state, judge, run_id,
        labels, prompt_hash, truncated, created_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'vdt_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'rac_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'rnd_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'prj_' || substr((i % 500) || 'x0000000000000000000000000', 1, 26), 1, 'given', 'j',
        'run_' || i, '{{}}', 'h', 0, {{now}}, {{now}} FROM n""",
    f"""INSERT INTO selections (round_id, number, verb, attempt_id, commit_id, selected_by,
        selected_at)
    {_SERIES.format(count=MANY)}
    SELECT 'rnd_' || substr(i || 'x0000000000000000000000000', 1, 26), 1, 'select', 'att_' || i,
        'c', 'user:x', {{now}} FROM n""",
    f"""INSERT INTO grafts (id, round_id, attempt_id, files, kept, checks, reason, created_by,
        created_at)
    {_SERIES.format(count=MANY)}
    SELECT 'grf_' || substr(i || 'x0000000000000000000000000', 1, 26),
        'rnd_' || substr(i || 'x0000000000000000000000000', 1, 26), 'att_' || i, '[]', 0, '[]', 'r',
        'user:x', {{now}} FROM n""",
    f"""INSERT INTO delegations (id, state, from_mailbox, to_agent_id, to_mailbox, parent_id,
        task_id, text, deadline_at, created_at, ended_at)
    {_SERIES.format(count=MANY)}
    SELECT 'dlg_' || substr(i || 'x0000000000000000000000000', 1, 26),
        CASE i % 20 WHEN 0 THEN 'active' ELSE 'done' END, 'agent:a' || (i % 97),
        'agt_' || substr((i % 50) || 'x0000000000000000000000000', 1, 26), 'agent:b',
        CASE i % 3 WHEN 0 THEN 'dlg_' || substr(i / 3 || 'x0000000000000000000000000', 1, 26) END,
        'tsk_' || substr(i || 'x0000000000000000000000000', 1, 26), 't', {{now}} + i - 20,
        {{now}} - i, CASE i % 20 WHEN 0 THEN NULL ELSE {{now}} END
    FROM n""",
    f"""INSERT INTO plans (subject, entries, updated_at)
    {_SERIES.format(count=MANY)} SELECT 'run_' || i, '[]', {{now}} FROM n""",
    f"""INSERT INTO progress (id, agent_id, task_id, summary, updated_at)
    {_SERIES.format(count=MANY)}
    SELECT 'agt_' || substr((i % 50) || 'x0000000000000000000000000', 1, 26) || '/tsk_' || i,
        'agt_' || substr((i % 50) || 'x0000000000000000000000000', 1, 26), 'tsk_' || i, 's', {{now}}
    FROM n""",
    f"""INSERT INTO checkpoints (thread, ns, id, parent, format, body, metadata, caller, at)
    {_SERIES.format(count=MANY)}
    SELECT 't' || (i % 400), CASE i % 3 WHEN 0 THEN 'part' ELSE '' END, 'c' || i, 'c' || (i - 400),
        'json', CAST('x' AS {{blob}}), '{{}}', CASE i % 2 WHEN 0 THEN 'call' || i END, {{now}}
    FROM n""",
    f"""INSERT INTO checkpoint_writes
        (thread, ns, checkpoint, task, position, path, channel, format, value, at)
    {_SERIES.format(count=MANY)}
    SELECT 't' || (i % 400), '', 'c' || i, 'task', 0, '', 'c', 'json', CAST('x' AS {{blob}}),
        {{now}}
    FROM n""",
    f"""INSERT INTO passages (kind, subject, location, at, text)
    {_SERIES.format(count=MANY * 3)}
    SELECT 'turn', 'ses_' || i, 1, {{now}}, 'text ' || i || CASE i WHEN 7 THEN ' zebra' ELSE '' END
    FROM n""",
]


_EVENTS = """INSERT INTO events (at, actor, kind, verb, subject, project_id, data)
    SELECT {now} - i, 'user:x', 'letter', 'put',
        CASE i % 100 WHEN 0 THEN 'let_7' ELSE 'let_' || i END,
        CASE i % 4 WHEN 0 THEN 'prj_' || (i % 200) END, NULL
    FROM n"""

# PostgreSQL's feed is ordered by transaction, so the history needs many transactions.
_EVENTS_IN_PIECES = """DO $$ BEGIN
    FOR piece IN 0..999 LOOP
        WITH n (i) AS (SELECT generate_series(piece * 30 + 1, piece * 30 + 30))
        {insert};
        COMMIT;
    END LOOP;
END $$"""


def fill(url: str, now: int) -> None:
    """Fill a fresh store with a long history."""
    with corral.open(url, actor="user:x") as store, store.transaction() as tx:
        for text in _FILL:
            tx.run(Statement(text.replace("{now}", str(now))))
        events = _EVENTS.replace("{now}", str(now))
        if store.db.engine == "sqlite":
            series = _SERIES.format(count=LETTERS)
            tx.run(Statement(events.replace("SELECT", f"{series} SELECT", 1)))
            fill_deferred_indexes(lambda text: tx.run(Statement(text)))
            return
    with psycopg.connect(url, autocommit=True) as server:
        server.execute(_EVENTS_IN_PIECES.replace("{insert}", events).encode())
        server.execute("ANALYZE")
