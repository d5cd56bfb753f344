"""What a change of steps or of cuts comes to: pure functions of plans, figures and what a person has said."""
