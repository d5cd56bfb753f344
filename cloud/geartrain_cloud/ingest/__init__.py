"""Ingest: takes the batches of devices from the broker into the log, each once and in order; then acks."""
