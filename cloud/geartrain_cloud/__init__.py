"""The data centre's half: broker, ingest, durable log, Spark, sinks, pages and the gear command."""
