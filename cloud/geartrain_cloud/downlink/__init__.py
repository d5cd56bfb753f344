"""The way down: the outbox that Spark's micro-batches are written to, and the process that sends it."""
