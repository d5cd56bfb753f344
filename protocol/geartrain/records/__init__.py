"""What travels: records, their event times, keys and origins, and the batches that hold them as columns."""
