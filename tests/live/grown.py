"""What the nursery imports, once: all of a node, which is then out of sight of its collector of rings."""

import gc

import tidewarden.cli.node
import tidewarden.daemon  # noqa: F401 - a node's verb imports it when it is run

gc.collect()
gc.freeze()
