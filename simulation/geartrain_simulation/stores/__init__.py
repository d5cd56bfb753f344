"""Spools, ledgers, segments and outboxes on simulated disks."""
