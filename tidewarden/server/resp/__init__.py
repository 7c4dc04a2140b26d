"""Serves RESP: connections, parser, encoder, replies."""
