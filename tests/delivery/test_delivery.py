"""Sender and receiver together: each batch once and in order, whatever the channel does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from geartrain.delivery.sender import Handshake
from tests.delivery.channel import Link, Troubles

CHANCES = st.sampled_from((0.0, 0.1, 0.4))
TROUBLES = st.builds(
    Troubles,
    lose=CHANCES,
    double=CHANCES,
    latency_s=st.sampled_from((0.002, 0.05, 3.0)),
    flip=st.sampled_from((0.0, 0.05)),
    breaks=st.integers(0, 4),
    restarts=st.integers(0, 4),
)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 1 << 32),
    last_seq=st.integers(1, 40),
    troubles=TROUBLES,
    handshake=st.sampled_from(Handshake),
)
def test_each_batch_arrives_once_and_in_order(
    seed: int, last_seq: int, troubles: Troubles, handshake: Handshake
) -> None:
    link = Link(seed, last_seq, troubles, handshake)
    link.run()
    assert link.accepted == list(range(1, last_seq + 1))


@pytest.mark.parametrize("handshake", Handshake)
def test_a_good_channel_carries_each_batch_once(handshake: Handshake) -> None:
    link = Link(1, 100, Troubles(until_s=0.0), handshake)
    link.run()
    assert link.accepted == list(range(1, 101))
    assert link.sendings == 100
