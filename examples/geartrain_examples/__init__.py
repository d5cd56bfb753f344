"""The demos, one folder each, written as a user of Geartrain would write them."""
