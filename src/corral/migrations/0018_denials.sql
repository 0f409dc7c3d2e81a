-- Tools that an agent wanted to use and was not permitted to.

-- how often each tool was denied, by attempt; null: none was denied
ALTER TABLE runs ADD COLUMN denials {json};
