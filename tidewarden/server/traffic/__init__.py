"""Who sends what: counted in bounded memory, and shown while it passes."""
