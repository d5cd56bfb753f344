"""Windows at work: which are open, when they fire, and the results that they give."""
