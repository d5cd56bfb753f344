"""Concurrency: the few rules of asyncio that adapters, sources, agents, ingest and senders share.

It has no effects of its own: time and the network come in through ports.
"""
