"""Plans for people: the measured costs of a flow's cuts, and a plan as text and as a drawing.

Nothing here runs on a device, and nothing here needs Spark.
"""
