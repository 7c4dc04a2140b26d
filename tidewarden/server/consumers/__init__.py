"""Shows who holds tasks and waits for them, over all nodes, and ends them."""
