"""The downlink: batches of the cloud's outbox, received in order and applied."""
