-- The question that a run asks and waits for; set and cleared together with its attention.
ALTER TABLE runs ADD COLUMN dialog {json};  -- question, options and subject; null: it asks nothing
