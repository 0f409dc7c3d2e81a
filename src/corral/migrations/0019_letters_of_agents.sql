-- What puts letters later continues the chain of letters that led to the run that made it.

-- the chain of letters that its letters continue; null: a person made it
ALTER TABLE schedules ADD COLUMN correlation_id {key};

-- how many letters of agents led to the run that made or changed it; null: a person made it
ALTER TABLE schedules ADD COLUMN hops {integer};

-- the chain of letters that an answer continues; null: a person asked
ALTER TABLE questions ADD COLUMN correlation_id {key};

-- how many letters of agents led to the run that asked; null: a person asked
ALTER TABLE questions ADD COLUMN hops {integer};

-- the chain of letters that the result continues; null: a person delegated it
ALTER TABLE delegations ADD COLUMN correlation_id {key};

-- how many letters of agents led to the run that delegated it; null: a person did
ALTER TABLE delegations ADD COLUMN hops {integer};

-- the session that took its place after it was closed: letters go there; null: none
ALTER TABLE sessions ADD COLUMN replaced_by {key};
