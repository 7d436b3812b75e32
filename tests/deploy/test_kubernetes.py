"""The Kubernetes files are what the API takes, and name what is there."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from workers import keeper
from workers.fleet.names import NODE
from workers.settings import Settings

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSION = "1.32"  # a release that clusters have; the schemas of newer ones only add
needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl is not installed"
)


def objects(path: Path) -> Iterator[dict[str, Any]]:
    yield from yaml.safe_load_all(path.read_text())


def rendered(overlay: str) -> Iterator[dict[str, Any]]:
    """What `kubectl apply -k` would send."""
    done = subprocess.run(
        ["kubectl", "kustomize", FOLDER / overlay], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    yield from yaml.safe_load_all(done.stdout)


FLEET = {(o["kind"], o["metadata"]["name"]): o for o in objects(FOLDER / "cpu" / "lockstep.yaml")}
NODES = FLEET["StatefulSet", "lockstep"]["spec"]
POD = NODES["template"]["spec"]
CONTAINER = POD["containers"][0]


@pytest.mark.parametrize("path", ["cpu/lockstep.yaml", "secret.example.yaml"])
def test_the_api_takes_every_object(path):
    for told in objects(FOLDER / path):
        kubernetes_validate.validate(told, VERSION, strict=True)


def test_a_field_that_does_not_exist_is_found():
    told = {**FLEET["PodDisruptionBudget", "lockstep"], "specs": {}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(told, VERSION, strict=True)


@needs_kubectl
@pytest.mark.parametrize("overlay", ["cpu", "gpu"])
def test_what_is_applied_is_taken(overlay):
    found = list(rendered(overlay))
    for told in found:
        kubernetes_validate.validate(told, VERSION, strict=True)
    assert len(found) == len(FLEET)


@needs_kubectl
def test_a_gpu_is_added_and_nothing_is_lost():
    [nodes] = [told["spec"] for told in rendered("gpu") if told["kind"] == "StatefulSet"]
    container = nodes["template"]["spec"]["containers"][0]
    limits = container["resources"]["limits"]
    assert limits == CONTAINER["resources"]["limits"] | {"nvidia.com/gpu": "1"}
    assert container["image"] == CONTAINER["image"] + "-gpu"
    assert container["readinessProbe"] == CONTAINER["readinessProbe"]


def test_an_overlay_changes_a_container_that_exists():
    """What kustomize would add silently as a second one."""
    [changed] = objects(FOLDER / "gpu" / "node.yaml")
    assert ("StatefulSet", changed["metadata"]["name"]) in FLEET
    names = [one["name"] for one in changed["spec"]["template"]["spec"]["containers"]]
    assert names == [CONTAINER["name"]]


def test_every_selector_finds_the_pods():
    labels = NODES["template"]["metadata"]["labels"].items()
    assert NODES["selector"]["matchLabels"].items() <= labels
    assert FLEET["PodDisruptionBudget", "lockstep"]["spec"]["selector"]["matchLabels"].items() <= (
        labels
    )
    services = [told["spec"]["selector"] for (kind, _), told in FLEET.items() if kind == "Service"]
    assert len(services) == 2 and all(one.items() <= labels for one in services)
    assert ("Service", NODES["serviceName"]) in FLEET


def test_every_volume_and_source_that_is_named_is_there():
    volumes = {one["name"] for one in POD["volumes"]}
    volumes |= {one["metadata"]["name"] for one in NODES["volumeClaimTemplates"]}
    assert {one["name"] for one in CONTAINER["volumeMounts"]} == volumes


def test_every_source_of_settings_is_there():
    named = [(kind, ref["name"]) for one in CONTAINER["envFrom"] for kind, ref in one.items()]
    [secret] = objects(FOLDER / "secret.example.yaml")
    assert named == [("configMapRef", "lockstep"), ("secretRef", secret["metadata"]["name"])]
    assert ("ConfigMap", "lockstep") in FLEET


def test_the_name_of_each_pod_is_a_name_of_a_node():
    name = FLEET["StatefulSet", "lockstep"]["metadata"]["name"]
    for number in (0, 99):
        assert re.fullmatch(NODE, f"{name}-{number}")
    [told] = [one for one in CONTAINER["env"] if one["name"] == "LOCKSTEP_NODE"]
    assert told["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"


def test_home_lies_on_the_volume():
    [home] = [one["value"] for one in CONTAINER["env"] if one["name"] == "LOCKSTEP_HOME"]
    [mount] = [one["mountPath"] for one in CONTAINER["volumeMounts"] if one["name"] == "home"]
    assert Path(home).is_relative_to(mount)


def test_every_setting_that_the_files_name_exists():
    known = {f"LOCKSTEP_{name.upper()}" for name in Settings.model_fields}
    for path in FOLDER.rglob("*.yaml"):
        assert set(re.findall(r"\bLOCKSTEP_[A-Z_]+", path.read_text())) <= known | {"LOCKSTEP_PORT"}


def test_no_setting_is_made_of_a_service():
    """A service called lockstep would set LOCKSTEP_PORT=tcp://..., which is no port."""
    assert POD["enableServiceLinks"] is False


def test_a_pod_has_time_to_stop_and_dies_of_no_outage():
    assert POD["terminationGracePeriodSeconds"] > keeper.DRAIN_S + keeper.STORE_DRAIN_S + 1
    assert CONTAINER["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert CONTAINER["livenessProbe"]["httpGet"]["path"] == "/healthz", "it does not ask Redis"


def test_it_runs_as_the_image_does():
    [user] = re.findall(r"(?m)^USER (\d+):\d+$", (ROOT / "deploy/Containerfile").read_text())
    assert POD["securityContext"]["runAsUser"] == int(user)
    assert POD["securityContext"]["runAsNonRoot"] is True
