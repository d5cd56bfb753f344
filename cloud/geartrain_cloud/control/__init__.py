"""Control: what is wanted of a platform, what is reported, REST for both, and the reconciler between them."""
