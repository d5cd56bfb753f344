"""The log: the cloud's durable input, immutable segments of rows and the ledger that says which exist."""
