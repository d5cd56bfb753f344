"""Placement: which step runs on which tier, by rules that keep the result the same."""

from geartrain.planning.cuts import Cut, choose_cut, legal_cuts
from geartrain.planning.plan import Channel, Plan, make_plan

__all__ = ["Channel", "Cut", "Plan", "choose_cut", "legal_cuts", "make_plan"]
