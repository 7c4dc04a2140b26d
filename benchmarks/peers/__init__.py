"""The peers, one a file, and ``python -m benchmarks.peers``, which prints all of them beside us."""
