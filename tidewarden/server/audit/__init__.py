"""Notes in the store who read, put, exported or deleted which account, and who changed what."""
