"""Sends calls to a shard of a queue, many in one script."""
