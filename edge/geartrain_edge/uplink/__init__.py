"""The uplink: committed batches on their way to ingest until it has acked them."""
