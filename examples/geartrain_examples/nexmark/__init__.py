"""NEXMark: queries over an auction house, by which stream processors are compared; each is a flow of its own.

P. Tucker, K. Tufte, V. Papadimos and D. Maier, "NEXMark: A Benchmark for Queries over Data Streams" (2002),
defines q1 to q8; q0, q11 and q18 are those of Apache Beam and of https://github.com/nexmark/nexmark.

    gear run geartrain_examples.nexmark.q5:flow --set bids.events=200000 --output build/nexmark
"""
