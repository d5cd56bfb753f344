"""Concurrency: the few rules of asyncio that the agent, ingest and the outbox's sender share.

It has no effects of its own: time and the network come in through ports.
"""
