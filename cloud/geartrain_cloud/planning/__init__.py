"""Plans for people: what the cuts of a flow cost, by a measurement, and a plan as text and as a drawing.

Nothing here runs on a device, and nothing here needs Spark.
"""
