"""What a daemon asks of its own process, tried in one of its own."""

from __future__ import annotations

import subprocess
import sys


def test_the_limit_of_open_files_is_raised_as_far_as_the_host_allows() -> None:
    script = (
        "import resource; from tidewarden.process import FILES_WANTED, raise_file_limit\n"
        "hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard)); raise_file_limit()\n"
        "soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]\n"
        "assert soft == (FILES_WANTED if hard == resource.RLIM_INFINITY else min(FILES_WANTED, hard)), soft\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_the_collector_runs_rarely_and_passes_over_what_is_built() -> None:
    script = (
        "import gc; from tidewarden.process import calm_collector\n"
        "calm_collector(); assert gc.isenabled() and gc.get_freeze_count() > 0 and gc.get_threshold()[0] >= 10_000\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_no_core_is_dumped_and_no_neighbour_reads_the_memory() -> None:
    script = (
        "import ctypes, resource; from tidewarden.process import keep_memory_private\n"
        "keep_memory_private(); assert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)\n"
        "assert ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
