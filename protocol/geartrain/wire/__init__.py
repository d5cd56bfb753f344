"""The wire: what a batch, an ack and a NACK look like between agent and ingest, and on which topics they
travel.
"""
