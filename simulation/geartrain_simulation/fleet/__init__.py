"""A fleet in a simulated world: agents, ingest, Spark's part, and the faults that strike them."""
