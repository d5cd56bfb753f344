"""Why a row of a table is as it is: found by its origin and by the log, in a process of its own."""
