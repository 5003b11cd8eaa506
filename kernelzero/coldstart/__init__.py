"""Cold start: teachers that write kernels, and the corpus made of those that Keck finds correct."""
