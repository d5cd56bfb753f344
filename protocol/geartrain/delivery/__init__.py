"""Reliable delivery, written once: the two ends of a stream of numbered batches as state machines without
I/O.

Between the wire format and whoever drives a connection. Bytes, answers and the time go in; what is to be
sent, what has happened and the next timer come out. The design is that of h11 and of aioquic's
`QuicConnection`.
"""
