"""A Kubernetes cluster of one node, in a network of its own: the programs that tests/kubernetes.sh builds."""

import json
import os
import subprocess
import sys
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import yaml
from clusters import wait_until
from containers import engine
from deployment import PATH, run, started

#: what a cluster consists of
PROGRAMS = (
    "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet", "kubectl",
    "dnsmasq", "ip", "iptables", "nsenter", "openssl", "unshare",
)  # fmt: skip
#: address of the node, and the networks of its pods and of services
NODE, PODS, SERVICES = "10.97.0.1", "10.97.0.0/16", "10.98.0.0/24"
API = f"https://{NODE}:6443"
DOMAIN = "cluster.local"
TOKEN = "administrator"
#: in a test machine, processes may lack the right to lower the score by which the kernel chooses what it kills
RUNTIME = r"""#!/bin/sh
previous=
for each in "$@"; do
    [ "$previous" != --bundle ] || sed -i 's/"oomScoreAdj":-[0-9]*/"oomScoreAdj":0/' "$each/config.json"
    previous=$each
done
exec runc "$@"
"""


class Node:
    """A running cluster.

    Attributes
    ----------
    folder : Path
        Logs and settings of its parts.
    inside : tuple of str
        Start of a command that runs on the node.
    """

    def __init__(self, folder, inside):
        self.folder, self.inside = folder, inside
        own = {"KUBECONFIG": str(folder / "kubeconfig"), "HOME": str(folder)}
        self.environment = {**os.environ, "PATH": PATH, **own}

    def run(self, *command, timeout=60):
        """Run a program as an administrator of the cluster, and return what it has printed."""
        return run(*self.inside, *command, timeout=timeout, env=self.environment, cwd=self.folder)

    def kubectl(self, *command, timeout=60):
        return self.run("kubectl", *command, timeout=timeout)

    def get(self, *what):
        """Return resources as 'kubectl get' does; None if there is none of this name."""
        printed = self.kubectl("get", *what, "--ignore-not-found", "-o", "json")
        return json.loads(printed) if printed else None

    def list(self, *what):
        """Return all resources that 'kubectl get' finds."""
        return (self.get(*what) or {"items": []})["items"]

    def apply(self, *resources):
        place = self.folder / "applied.yaml"
        place.write_text(yaml.safe_dump_all(resources))
        self.kubectl("apply", "-f", place)

    @contextmanager
    def explained(self):
        """If the block fails, print the pods, the last events, and the ends of the logs."""
        try:
            yield
        except BaseException:
            sys.stderr.write(self.kubectl("get", "pods,services", "--all-namespaces", "-o", "wide"))
            sys.stderr.write(self.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp")[-6000:])
            for pod in self.list("pods", "--all-namespaces"):
                name, space = pod["metadata"]["name"], pod["metadata"]["namespace"]
                # A pod that has not started has no log.
                with suppress(AssertionError):
                    sys.stderr.write(f"{name}:\n{self.kubectl('logs', '--tail=30', '-n', space, name)}")
            raise


@contextmanager
def machine(log):
    """Namespaces of network, mounts and processes, with a bridge for pods; all that is in them ends with them.

    Yields
    ------
    tuple of str
        Start of a command that runs there.
    """
    spaces = ("--net", "--mount", "--pid")
    with started(
        log, "unshare", *spaces, "--fork", "--mount-proc", "--kill-child", "sleep", "infinity"
    ) as holder:
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
        inside = ("nsenter", "--target", wait_until(lambda: children.read_text().strip()), *spaces)
        for command in (
            "ip link set lo up",
            "ip link add pods type bridge",
            f"ip addr add {NODE}/16 dev pods",
            "ip link set pods up",
            "sysctl -q net.ipv4.ip_forward=1 net.bridge.bridge-nf-call-iptables=1",
        ):
            run(*inside, *command.split())
        yield inside


@contextmanager
def node(folder, images, pause):
    """Start a cluster whose pods are containers of an engine.

    Parameters
    ----------
    folder : Path
    images : Path
        Folder of an engine (`containers.engine`) that has built the images.
    pause : str
        Image that holds the network of a pod.

    Yields
    ------
    Node
    """
    with ExitStack() as stack:
        inside = stack.enter_context(machine(folder / "machine.log"))
        cluster = Node(folder, inside)
        settings(folder)
        options = ("--bridge=pods", "--ip-masq=false", "--userland-proxy=false", "--default-runtime=pod")
        docker = stack.enter_context(
            engine(images, *options, f"--add-runtime=pod={folder}/runtime", inside=inside)
        )
        (folder / "names").mkdir()

        def start(name, *options):
            command = (*inside, name, *options)
            return stack.enter_context(
                started(
                    folder / f"{name}.log", *command, env={**os.environ, "PATH": PATH, "HOME": str(folder)}
                )
            )

        to_api = f"--kubeconfig={folder}/kubeconfig"
        start("etcd", f"--data-dir={folder}/etcd")
        start(
            "kube-apiserver", "--etcd-servers=http://127.0.0.1:2379", f"--cert-dir={folder}",
            f"--advertise-address={NODE}", f"--service-cluster-ip-range={SERVICES}", "--authorization-mode=RBAC",
            f"--token-auth-file={folder}/tokens.csv", f"--service-account-issuer={API}",
            f"--service-account-key-file={folder}/accounts.key",
            f"--service-account-signing-key-file={folder}/accounts.key",
            "--kubelet-preferred-address-types=InternalIP",
        )  # fmt: skip
        wait_until(lambda: is_ready(cluster), timeout_s=120)
        start(
            "kube-controller-manager", to_api, "--leader-elect=false", f"--cert-dir={folder}",
            f"--service-account-private-key-file={folder}/accounts.key",
            f"--root-ca-file={folder}/apiserver.crt",
        )  # fmt: skip
        start("kube-scheduler", to_api, "--leader-elect=false", f"--cert-dir={folder}")
        start(
            "kube-proxy", to_api, "--proxy-mode=iptables", "--hostname-override=node", f"--cluster-cidr={PODS}",
            "--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        )  # fmt: skip
        start(
            "dnsmasq", "--keep-in-foreground", "--no-hosts", "--no-resolv", f"--listen-address={NODE}",
            "--bind-interfaces", f"--hostsdir={folder}/names", f"--local=/{DOMAIN}/", "--log-facility=-",
            "--user=root", f"--pid-file={folder}/dnsmasq.pid",
        )  # fmt: skip
        start(
            "kubelet", to_api, f"--config={folder}/kubelet.yaml", f"--root-dir={folder}/kubelet",
            f"--cert-dir={folder}/kubelet-tls", "--container-runtime=docker",
            f"--docker-endpoint={docker.address}", f"--pod-infra-container-image={pause}",
            "--hostname-override=node", f"--node-ip={NODE}", f"--cni-bin-dir={folder}",
        )  # fmt: skip
        wait_until(lambda: is_node_ready(cluster), timeout_s=120)
        yield cluster


def settings(folder):
    """Write keys and settings of the parts of a cluster."""
    (folder / "runtime").write_text(RUNTIME)
    (folder / "runtime").chmod(0o755)
    run("openssl", "genrsa", "-out", folder / "accounts.key", "2048")
    (folder / "tokens.csv").write_text(f"{TOKEN},administrator,1,system:masters\n")
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "node", "cluster": {"server": API, "certificate-authority": f"{folder}/apiserver.crt"}}
        ],
        "users": [{"name": "administrator", "user": {"token": TOKEN}}],
        "contexts": [{"name": "node", "context": {"cluster": "node", "user": "administrator"}}],
        "current-context": "node",
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    kubelet = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "clusterDNS": [NODE],
        "clusterDomain": DOMAIN,
        "failSwapOn": False,
        # The disk of a test machine may be nearly full.
        "evictionHard": {"memory.available": "50Mi"},
        "imageGCHighThresholdPercent": 100,
    }
    (folder / "kubelet.yaml").write_text(yaml.safe_dump(kubelet))


def is_ready(cluster):
    """Whether the server of a cluster answers."""
    command = [*cluster.inside, "kubectl", "get", "--raw", "/readyz"]
    return subprocess.run(command, env=cluster.environment, capture_output=True, check=False).returncode == 0


def is_node_ready(cluster):
    """Whether the node of a cluster takes pods."""
    found = cluster.get("nodes", "node")
    conditions = found["status"]["conditions"] if found else []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def name_services(cluster):
    """Give the present services their names, which the name server of a cluster does by itself elsewhere."""
    for service in cluster.list("services", "--all-namespaces"):
        name, space = service["metadata"]["name"], service["metadata"]["namespace"]
        place = Path(cluster.folder) / "names" / f"{name}.{space}"
        line = f"{service['spec']['clusterIP']} {name}.{space}.svc.{DOMAIN}\n"
        if not place.exists() or place.read_text() != line:
            place.write_text(line)
