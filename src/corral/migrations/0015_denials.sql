-- Tools that an agent wanted to use and was not permitted to.
ALTER TABLE runs ADD COLUMN denials {json};  -- how often, by attempt and tool; none: it was denied nothing
