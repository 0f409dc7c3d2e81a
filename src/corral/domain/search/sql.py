from corral.db.statement import Query, Statement
from corral.domain.search.model import Cursor, Hit

_HIT = "seq, kind, subject, place, project_id, at, text AS snippet"

# The numbers first, and the texts of those alone that are shown.
_FIND = f"""
    WITH {{hits}} (
        SELECT {{hit_seq}} AS found FROM {{from_where}}
          AND (CAST(:kind AS TEXT) IS NULL OR kind = :kind)
          AND (CAST(:project_id AS TEXT) IS NULL OR project_id = :project_id)
    ),
    newest AS MATERIALIZED (SELECT found FROM hits ORDER BY found DESC LIMIT :limit)
    SELECT {_HIT} FROM newest CROSS JOIN passages WHERE passages.seq = newest.found
    ORDER BY newest.found DESC
"""

FIND = Query(Hit, _FIND.replace("{from_where}", "{matching_passages}"))
FIND_RECENT = Query(Hit, _FIND.replace("{from_where}", "{recent_passages}"))

NEWEST = Statement("SELECT max(seq) FROM passages")

# Many in one statement, because each would be a round trip.
ADD = Statement("""
    INSERT INTO passages (kind, subject, place, project_id, at, text, folded)
    SELECT each.value ->> 'kind', each.value ->> 'subject',
           CAST(each.value ->> 'place' AS {integer}), each.value ->> 'project_id',
           CAST(each.value ->> 'at' AS {integer}), each.value ->> 'text',
           each.value ->> 'folded'
    FROM {each_of_rows}
""")

FORGET = Statement("""
    DELETE FROM passages WHERE seq IN (
        SELECT seq FROM passages WHERE subject = :subject AND kind = :kind LIMIT :limit
    )
    RETURNING seq
""")

_CURSOR = "source, seq, ahead, ahead_xid"

CURSOR = Query(Cursor, f"SELECT {_CURSOR} FROM search_cursors WHERE source = :source")

# How far there is something now, and what was begun before it.
LOOK_AHEAD = Query(
    Cursor,
    f"""
    INSERT INTO search_cursors (source, seq, ahead, ahead_xid)
    VALUES (:source, 0, :ahead, {{next_xid}})
    ON CONFLICT (source) DO UPDATE SET ahead = excluded.ahead, ahead_xid = excluded.ahead_xid
    RETURNING {_CURSOR}
""",
)

# Whether everything that was begun before has ended; a number from another server is none of ours.
SETTLED = Statement("SELECT {oldest_xid} >= :xid, {next_xid} < :xid")

GO_ON = Statement("UPDATE search_cursors SET seq = :seq WHERE source = :source")

# No further than there are turns: what comes next is numbered behind these.
GO_BACK = Statement("""
    UPDATE search_cursors SET seq = turns.newest, ahead = turns.newest
    FROM (SELECT coalesce(max(seq), 0) AS newest FROM turns) AS turns
    WHERE search_cursors.source = :source AND search_cursors.seq > turns.newest
""")
