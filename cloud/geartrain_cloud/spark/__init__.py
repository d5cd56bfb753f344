"""Spark: its Java, its session, the reader of the log, and what a flow compiles to there."""
