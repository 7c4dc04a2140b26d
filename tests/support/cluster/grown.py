"""
What the nursery has done, once: all that a node imports and reads of the package, which is then out
of sight of its collector of rings.
"""

import contextlib
import functools
import gc
import io

from support.cluster.nursery import link_password

from tidewarden import cli
from tidewarden.node import daemon
from tidewarden.raft import member

member.link_password = link_password
# Its verb's parser imports more when it is used.
with contextlib.redirect_stdout(io.StringIO()):
    cli.command_line("node")(["node", "--check"], standalone_mode=False)
# And each would put the same Lua together anew.
daemon.product_scripts = functools.cache(daemon.product_scripts)
daemon.product_scripts()

gc.collect()
gc.freeze()
