"""Ingest: takes the devices' batches from the broker into the log, each once and in order, then acks them."""
