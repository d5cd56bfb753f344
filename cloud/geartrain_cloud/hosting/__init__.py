"""Many flows in one streaming query of Spark, which come and go while it runs."""
