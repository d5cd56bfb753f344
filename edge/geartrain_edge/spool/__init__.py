"""The spool: the agent's durable queue, what goes into it and what has to leave it."""
