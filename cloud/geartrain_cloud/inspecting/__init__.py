"""What a person looks into: the log, its devices, quarantine and dead letters, as JSON values."""
