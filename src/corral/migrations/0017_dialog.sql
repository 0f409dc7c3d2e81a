-- The line above a column that is added becomes its text in docs/reference/schema.md: SQLite keeps a comment
-- behind it as a part of the table, where it swallows what follows.

-- the question that it asks, with its options and subject; null: none
ALTER TABLE runs ADD COLUMN dialog {json};

-- lines of its terminal, without which what it drew cannot be shown as it was; null: it has none
ALTER TABLE runs ADD COLUMN screen_rows {integer};

-- columns of its terminal; null: it has none
ALTER TABLE runs ADD COLUMN screen_columns {integer};
