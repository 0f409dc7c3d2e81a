"""SQL of the search index."""

from corral.db.statement import Query, Statement
from corral.domain.search.model import Hit, IndexCursor

_HIT = "seq, kind, subject, location, project_id, at, text AS snippet"

# Finds the numbers first, and reads the texts only of the hits on the page.
_FIND = f"""
    WITH {{hits}} (
        SELECT {{hit_seq}} AS hit FROM {{from_where}}
          AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
          AND (CAST(:project_id AS TEXT) IS NULL OR project_id = :project_id)
    ),
    newest AS MATERIALIZED (SELECT hit FROM hits ORDER BY hit DESC LIMIT :limit)
    SELECT {_HIT} FROM newest CROSS JOIN passages WHERE passages.seq = newest.hit
    ORDER BY newest.hit DESC
"""

FIND = Query(Hit, _FIND.replace("{from_where}", "{matching_passages}"))
FIND_RECENT = Query(Hit, _FIND.replace("{from_where}", "{recent_passages}"))

NEWEST = Statement("SELECT max(seq) FROM passages")

# Inserts many rows at once, to save round trips.
ADD = Statement("""
    INSERT INTO passages (kind, subject, location, project_id, at, text, folded)
    SELECT each.value ->> 'kind', each.value ->> 'subject',
           CAST(each.value ->> 'location' AS {integer}), each.value ->> 'project_id',
           CAST(each.value ->> 'at' AS {integer}), each.value ->> 'text',
           each.value ->> 'folded'
    FROM {each_of_rows}
""")

DELETE = Statement("""
    DELETE FROM passages WHERE seq IN (
        SELECT seq FROM passages WHERE subject = :subject AND kind = :kind LIMIT :limit
    )
    RETURNING seq
""")

_CURSOR = "source, seq, ahead, ahead_xid"

CURSOR = Query(IndexCursor, f"SELECT {_CURSOR} FROM search_cursors WHERE source = :source")

# Stores the highest seq that exists now, and the id of the next transaction. Every transaction that
# can still insert a lower seq is older than that.
SET_TARGET = Query(
    IndexCursor,
    f"""
    INSERT INTO search_cursors (source, seq, ahead, ahead_xid)
    VALUES (:source, 0, :ahead, {{next_xid}})
    ON CONFLICT (source) DO UPDATE SET ahead = excluded.ahead, ahead_xid = excluded.ahead_xid
    RETURNING {_CURSOR}
""",
)

# Whether all transactions before `xid` have ended; and whether `xid` comes from another server,
# because the store was moved.
SETTLED = Statement("SELECT {oldest_xid} >= :xid, {next_xid} < :xid")

ADVANCE = Statement("UPDATE search_cursors SET seq = :seq WHERE source = :source")

# Not beyond the highest existing turn: new turns are numbered after it.
REWIND = Statement("""
    UPDATE search_cursors SET seq = turns.newest, ahead = turns.newest
    FROM (SELECT coalesce(max(seq), 0) AS newest FROM turns) AS turns
    WHERE search_cursors.source = :source AND search_cursors.seq > turns.newest
""")
