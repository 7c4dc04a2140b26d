"""
How ``make test`` shares the files out: most processes begin with those that take longest, and
mostly wait; one in four begins at the other end, with those that mostly count. So the processors
have something to do from the first to the last second.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

EVERY = 4
"""One process in so many begins at the end."""


class BothEnds(LoadFileScheduling):
    """A file at a time to each process, as xdist does it; only which file is next is ours."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if int(node.gateway.id.removeprefix("gw")) % EVERY == EVERY - 1:
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)
