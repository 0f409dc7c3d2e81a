-- The question that a run asks and waits for; set and cleared together with its attention.
ALTER TABLE runs ADD COLUMN dialog {json};              -- question, options and subject; null: it asks nothing
-- The size of its terminal, without which what it drew cannot be shown as it was.
ALTER TABLE runs ADD COLUMN screen_rows {integer};      -- lines of its terminal; null: it has none
ALTER TABLE runs ADD COLUMN screen_columns {integer};   -- columns of its terminal; null: it has none
