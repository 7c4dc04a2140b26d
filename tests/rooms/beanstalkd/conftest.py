"""The beanstalkd door before a real queue."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from support.doors.beanstalkd_site import BeanstalkdSite, beanstalkd_site


@pytest.fixture
async def site(node: Any) -> AsyncIterator[BeanstalkdSite]:
    """A door of a node."""
    async with beanstalkd_site((await node()).queues) as made:
        yield made
