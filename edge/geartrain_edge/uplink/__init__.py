"""The uplink: sends committed batches to ingest until it has acked them."""
