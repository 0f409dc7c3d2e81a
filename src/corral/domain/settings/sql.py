"""SQL of settings and secret references."""

from corral.db.listing import Listing
from corral.db.statement import Query, Statement, columns_of
from corral.domain.settings.model import Secret, Setting

_SETTING = columns_of(Setting, omit=("help",))

# At most one row for each scope.
GET = Query(
    Setting,
    f"""
    SELECT {_SETTING} FROM settings
    WHERE name = :name AND scope IN (:agent, :project, 'global')
""",
)

LIST = Query(Setting, f"SELECT {_SETTING} FROM settings WHERE scope = :scope ORDER BY name")

OF_PROJECTS = Query(
    Setting,
    f"""
    SELECT {_SETTING} FROM settings
    WHERE scope > 'project:' AND scope < 'project;' AND name = :name ORDER BY scope
""",
)

SET = Statement("""
    INSERT INTO settings (scope, name, value, updated_at, updated_by)
    VALUES (:scope, :name, :value, :now, :actor)
    ON CONFLICT (scope, name) DO UPDATE
    SET value = excluded.value, updated_at = excluded.updated_at, updated_by = excluded.updated_by
""")

UNSET = Statement("DELETE FROM settings WHERE scope = :scope AND name = :name RETURNING name")

UNSET_ALL = Statement("DELETE FROM settings WHERE scope = :scope")

_REFERENCE = columns_of(Secret)

GET_SECRET = Query(Secret, f"SELECT {_REFERENCE} FROM secrets WHERE name = :name")

LIST_SECRETS = Listing(
    Query(
        Secret, f"SELECT {_REFERENCE} FROM secrets WHERE name > :after ORDER BY name LIMIT :limit"
    ),
    start={"after": ""},
    key=lambda secret: (secret.name,),
)

SET_SECRET = Query(
    Secret,
    f"""
    INSERT INTO secrets (name, reference, updated_at, updated_by)
    VALUES (:name, :reference, :now, :actor)
    ON CONFLICT (name) DO UPDATE SET reference = excluded.reference,
        updated_at = excluded.updated_at, updated_by = excluded.updated_by
    RETURNING {_REFERENCE}
""",
)

DELETE_SECRET = Query(Secret, f"DELETE FROM secrets WHERE name = :name RETURNING {_REFERENCE}")
