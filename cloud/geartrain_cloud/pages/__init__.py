"""Pages: a small web server over tables, for whatever page an example brings along."""
