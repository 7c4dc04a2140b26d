"""
Pods as a StatefulSet of Kubernetes has them, in network namespaces: a name that stays, an address
that is another one after each start, and a volume.

Names are those of ``/etc/hosts``, one file for all pods: the name server of a cluster is played by
what stands there. A pod that does not run has no name.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import httpx
from support.cluster.processes import ADMIN, LIMIT_S, START_S, spawn, until
from support.manifests import manifest

from benchmarks.network import Network
from tidewarden.config.secret import hash_generated

NAMED_FILES = Path("/etc/netns")
"""What ``ip netns exec`` lays over the files of ``/etc``, by the namespace's name."""
CLIENT = "client"
PORT, HTTP_PORT = 7420, 7421


class Pod:
    """One pod: its name, its volume, and the process in it while it runs."""

    def __init__(self, name: str, volume: Path) -> None:
        self.name = name
        self.volume = volume
        self.place = ""
        """The namespace it runs in, by its name in the network; empty: it never ran."""
        self.process: subprocess.Popen[bytes] | None = None
        self.environ: dict[str, str] = {}
        """What the StatefulSet does not say."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class StatefulSet:
    """
    The pods of the manifests, their names and addresses, and what a client asks for.

    The node's configuration is that of the ConfigMap, with the secret's hash and files of ours.
    """

    def __init__(self, folder: Path, secret: str) -> None:
        self.folder = folder
        self.secret = secret
        spec = manifest("StatefulSet")["spec"]
        self.min_ready_s = float(spec["minReadySeconds"])
        self.grace_s = float(spec["template"]["spec"]["terminationGracePeriodSeconds"])
        self._service = f".{spec['serviceName']}.tidewarden.svc"
        names = [f"tidewarden-{number}" for number in range(spec["replicas"])]
        (container,) = spec["template"]["spec"]["containers"]
        self._environ = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        self.pods = {name: Pod(name, folder / name) for name in names}
        # Each pod has a place more than it runs in, so that its next address is another one.
        places = [f"p{number}" for number in range(2 * len(names))]
        self.network = Network([*places, CLIENT])
        self._free = places
        self._files: list[Path] = []
        try:
            for place in (*places, CLIENT):
                self._lay_files(place)
        except BaseException:
            self.close()
            raise
        for name in ("cluster.key", "vault.key"):
            (folder / name).write_text(b64encode(os.urandom(32)).decode())
            (folder / name).chmod(0o600)
        self._text = manifest("ConfigMap")["data"]["config.toml"]

    def _lay_files(self, place: str) -> None:
        files = NAMED_FILES / Path(self.network.namespace(place)).name
        files.mkdir(parents=True)
        self._files.append(files)
        (files / "hosts").write_text("127.0.0.1 localhost\n")
        (files / "nsswitch.conf").write_text("hosts: files\n")

    def _config(self, pod: Pod) -> Path:
        hashed = hash_generated(self.secret)
        text = re.sub(r'(secret_hash = )".*"', rf'\1"{hashed}"', self._text)
        text = text.replace("/etc/tidewarden/keys", str(self.folder))
        file = self.folder / f"{pod.name}.toml"
        file.write_text(text.replace('"/data"', f'"{pod.volume}"'))
        return file

    def address(self, pod: Pod) -> str:
        """Its address; empty while it does not run."""
        return self.network.addresses[pod.place] if pod.running else ""

    def publish(self) -> None:
        """Write the names of all pods that run, and of those that are ready for the clients."""
        lines = ["127.0.0.1 localhost"]
        for pod in self.pods.values():
            if pod.running:
                lines.append(f"{self.address(pod)} {pod.name}{self._service} {pod.name}")
                if self.ready(pod):
                    lines.append(f"{self.address(pod)} tidewarden.tidewarden.svc")
        for files in self._files:
            # In place: the file that was laid over /etc/hosts is this one and no other.
            (files / "hosts").write_text("\n".join(lines) + "\n")

    def start(self, pod: Pod) -> None:
        """Start it at another address than before; its name is known once it runs."""
        before, pod.place = pod.place, self._free.pop(0)
        if before:
            self._free.append(before)
        words = ["node", "--config", str(self._config(pod))]
        environ = {**self._environ, "TIDEWARDEN_NODE_NAME": pod.name, **pod.environ}
        pod.process = self.execute(
            pod.place, [sys.executable, "-m", "tidewarden", *words], self.output(pod), environ
        )
        self.publish()

    def output(self, pod: Pod) -> Path:
        return self.folder / f"{pod.name}.output"

    def execute(
        self, place: str, words: list[str], output: Path, environ: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a program in a place, which has the names of all pods."""
        return spawn([*self._inside(place), *words], output, environ=environ)

    def _inside(self, place: str) -> list[str]:
        """The words before a program that is run in a place."""
        ip = shutil.which("ip")
        assert ip is not None
        return [ip, "netns", "exec", Path(self.network.namespace(place)).name]

    def end(self, pod: Pod, how: signal.Signals = signal.SIGTERM) -> int:
        """End it; clients are not led to it from then on, and its name goes with it."""
        assert pod.process is not None
        os.killpg(pod.process.pid, how)
        code = pod.process.wait(self.grace_s if how == signal.SIGTERM else LIMIT_S)
        self.publish()
        return code

    def ready(self, pod: Pod, *, whole: bool = False) -> bool:
        """Whether its readiness probe is content; ``whole``: and its store in sync."""
        with contextlib.suppress(httpx.HTTPError):
            where = f"http://{self.address(pod)}:{HTTP_PORT}/health/ready"
            said = httpx.get(where, timeout=2.0, trust_env=False)
            return said.status_code == 200 and not (whole and "warning" in said.json())
        return False

    def wait_ready(self, pod: Pod) -> None:
        """Return once it is ready, and clients are led to it."""
        until(lambda: not pod.running or self.ready(pod), START_S, what=f"{pod.name} is ready")
        assert pod.running, self.output(pod).read_text()[-2000:]
        self.publish()

    @property
    def url(self) -> str:
        """Where clients inside begin."""
        return f"redis://{ADMIN}:{self.secret}@tidewarden.tidewarden.svc:{PORT}"

    def tell(self, pod: Pod, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command line beside the node of a pod, as ``kubectl exec`` does."""
        url = f"redis://{ADMIN}:{self.secret}@127.0.0.1:{PORT}"
        argv = [*self._inside(pod.place), sys.executable, "-m", "tidewarden", *words, "--url", url]
        return subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)

    def close(self) -> None:
        """End all that runs and remove the network."""
        for pod in self.pods.values():
            if pod.running and pod.process is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pod.process.pid, signal.SIGKILL)
                pod.process.wait(LIMIT_S)
        for files in self._files:
            shutil.rmtree(files)
        self.network.close()
