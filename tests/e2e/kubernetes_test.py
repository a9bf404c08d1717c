"""deploy/kubernetes: every overlay builds and is valid, its times add up, its commands are ones the programs take, and the
CPU overlay's commands serve. deploy/Containerfile: its packages are what the programs load."""

import glob
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

from harness import BUILD, SOURCE, Process, check, check_eq, check_in, free_port, main, note, test, wait_for

FOLDER = os.path.join(SOURCE, "deploy", "kubernetes")
OVERLAYS = {"gpu1": 1, "gpu2": 2, "gpu4": 4, "gpu8": 8, "cpu": 1}
# The oldest version with sidecars on by default, and the newest whose schemas are there.
SCHEMAS = ["1.29.0", "1.37.0"]
# Of a GPU's worker beside what it pins: its own heap and the driver's (docs/deploy.md).
HOST_BYTES = 2 << 30


def validator():
    """The module of PyPI, from the tests' virtual environment."""
    made = subprocess.run(["sh", os.path.join(SOURCE, "tests", "tools", "venv.sh")], stdout=subprocess.PIPE, text=True, check=False)
    check_eq(made.returncode, 0, "tests/tools/venv.sh")
    sys.path.extend(glob.glob(os.path.join(made.stdout.strip(), "lib", "python3*", "site-packages")))
    import kubernetes_validate
    return kubernetes_validate


def build(name):
    import yaml
    p = subprocess.run(["kubectl", "kustomize", os.path.join(FOLDER, name)], capture_output=True, text=True, check=False)
    check_eq(p.returncode, 0, f"kubectl kustomize {name}: {p.stderr}")
    return list(yaml.safe_load_all(p.stdout))


def pod(objects):
    return next(o for o in objects if o["kind"] == "Deployment")["spec"]["template"]["spec"]


def programs(spec):
    return spec["initContainers"] + spec["containers"]


def command_of(container):
    """Command and arguments with $(NAME) replaced from env, as kubelet does."""
    env = {e["name"]: e["value"] for e in container.get("env", [])}
    words = container["command"] + container["args"]
    return [re.sub(r"\$\((\w+)\)", lambda m: env[m.group(1)], w) for w in words]


@test
def every_overlay_builds_and_is_valid():
    kubernetes_validate = validator()
    for name in ("base", *OVERLAYS):
        for o in build(name):
            for version in SCHEMAS:
                kubernetes_validate.validate(o, version, strict=True)
    monitor = build("monitoring")[0]  # a kind of the Prometheus operator, which has no schema there
    check_eq((monitor["kind"], monitor["spec"]["podMetricsEndpoints"][0]["path"]), ("PodMonitor", "/metrics"), "monitor")


@test
def each_overlay_has_its_workers_and_all_of_them_are_shut_in():
    for name, count in OVERLAYS.items():
        objects = build(name)
        spec = pod(objects)
        workers = sorted(spec["initContainers"], key=lambda w: w["name"])  # their order means nothing
        check_eq([w["name"] for w in workers], [f"worker-{k}" for k in range(count)], f"workers of {name}")
        check_in(f"--workers={count}", command_of(spec["containers"][0]), f"router of {name}")
        for k, w in enumerate(workers):
            check_eq(w["restartPolicy"], "Always", f"{name} {w['name']}: a sidecar restarts by itself")
            check_in(f"--rank={k}", command_of(w), f"{name} {w['name']}")
            gpus = w["resources"]["limits"].get("nvidia.com/gpu", 0)
            check_eq(gpus, 0 if name == "cpu" else 1, f"GPUs of {name} {w['name']}")
            check_in("memory", w["resources"]["requests"], f"requests of {name} {w['name']}")
        check(spec["securityContext"]["runAsNonRoot"], f"{name} runs as root")
        for c in programs(spec):
            s = c["securityContext"]
            check_eq((s["readOnlyRootFilesystem"], s["allowPrivilegeEscalation"], s["capabilities"]), (True, False, {"drop": ["ALL"]}),
                     f"security of {name} {c['name']}")
        kinds = {o["kind"] for o in objects}
        check({"Service", "PodDisruptionBudget", "NetworkPolicy", "Deployment"} <= kinds, f"kinds of {name}: {kinds}")
        check_eq("PersistentVolumeClaim" in kinds, name != "cpu", f"model volume of {name}")
        # What selects pods selects these.
        labels = next(o for o in objects if o["kind"] == "Deployment")["spec"]["template"]["metadata"]["labels"]
        for o in objects:
            wanted = {"Service": lambda o: o["spec"]["selector"], "PodDisruptionBudget": lambda o: o["spec"]["selector"]["matchLabels"],
                      "NetworkPolicy": lambda o: o["spec"]["podSelector"]["matchLabels"]}.get(o["kind"], lambda o: {})(o)
            check(o["kind"] not in ("Service", "PodDisruptionBudget", "NetworkPolicy") or wanted, f"{o['kind']} of {name} selects all")
            check(wanted.items() <= labels.items(), f"{o['kind']} of {name} selects {wanted}, the pods have {labels}")


def bytes_of(text):
    """A quantity of Kubernetes, or a setting's bytes."""
    number, unit = re.fullmatch(r"([\d.]+)([KMGT]?)(?:i?B?)", str(text)).groups()
    return float(number) * 1024 ** " KMGT".index(unit or " ")


@test
def memory_requests_cover_what_is_pinned_and_what_the_process_takes():
    """What is pinned or in the heap is never given back: a request below it lets the node promise the same memory twice."""
    with tempfile.TemporaryDirectory(prefix="ry-shape-") as shape:
        subprocess.run(["/usr/bin/python3", os.path.join(SOURCE, "tests", "tools", "make_shape.py"), shape, "--sparse"], check=True)
        for name in OVERLAYS:
            spec = pod(build(name))
            for w in spec["initContainers"]:
                has = {k: bytes_of(w["resources"][k]["memory"]) for k in ("requests", "limits")}
                check(has["requests"] <= has["limits"], f"{name} {w['name']}: requests and limits {has}")
                if name == "cpu":
                    continue  # looked at where it runs
                flags = [a for a in command_of(w)[2:] if a.startswith("--") and not a.startswith(("--rank", "--lobby", "--alive", "--backend"))]
                p = subprocess.run([os.path.join(BUILD, "railyard-worker"), "inspect", shape, "--plan", "--room-gib=24", "--embedding=host", *flags],
                                   capture_output=True, text=True, check=True)
                staging, embedding = map(float, re.search(r"^pinned .* staging ([\d.]+), embedding ([\d.]+)$", p.stdout, re.M).groups())
                check(staging > 0 and embedding > 2, p.stdout)
                pinned = (staging + embedding) * 2**30
                check(has["requests"] >= pinned + HOST_BYTES, f"{name} {w['name']} asks for {has['requests']}, {pinned} bytes are pinned")
            router = spec["containers"][0]
            bodies = bytes_of(re.search(r"\(default ([^ )]+)", (text := help_of("railyard", "router"))[text.index("--api.bodies_bytes_max="):]).group(1))
            limit = bytes_of(router["resources"]["limits"]["memory"])
            check(bytes_of(router["resources"]["requests"]["memory"]) <= limit and limit > bodies, f"router of {name}: {limit}, bodies {bodies}")
            tmp = next(v for v in spec["volumes"] if v["name"] == "tmp")["emptyDir"]["sizeLimit"]
            check(bytes_of(tmp) > bodies, f"tmp of {name}: {tmp}, bodies {bodies}")


def held_bytes(pid):
    """Memory of a process that the kernel cannot take back: all but pages of files."""
    with open(f"/proc/{pid}/status") as f:
        return sum(int(n) << 10 for n in re.findall(r"^Rss(?:Anon|Shmem):\s+(\d+) kB", f.read(), re.M))


def help_of(program, *words):
    p = subprocess.run([os.path.join(BUILD, program), *words, "--help"], capture_output=True, text=True, check=True)
    return p.stdout


def default_of(text, setting):
    return float(re.search(r"\(default ([\d.]+)", text[text.index(f"--{setting}="):]).group(1))


@test
def the_times_add_up_and_every_flag_is_one():
    router_help, worker_help = help_of("railyard", "router"), help_of("railyard-worker")
    settle, drain = default_of(router_help, "drain.settle_s"), default_of(router_help, "drain.timeout_s")
    progress = default_of(router_help, "worker.progress_s")
    for name in OVERLAYS:
        spec = pod(build(name))
        grace = spec["terminationGracePeriodSeconds"]
        check(grace > settle + drain + 10, f"{name}: terminationGracePeriodSeconds {grace}, drain {settle} + {drain} s")
        for c in programs(spec):
            text = router_help if c["name"] == "router" else worker_help
            for word in command_of(c):
                if word.startswith("--"):
                    check_in(f"\n  {word.partition('=')[0]}=", text, f"help, for {word} of {name} {c['name']}")
        for w in spec["initContainers"]:
            probe = w["livenessProbe"]
            age = int(re.search(r"-(\d+) seconds", " ".join(probe["exec"]["command"])).group(1))
            check(age >= 3 * progress, f"{name}: the probe calls a worker dead after {age} s, it may stand still {progress} s")


class Container(Process):
    live = []


def run_in(root, container, ports):
    """The container's command with its paths in `root` and free ports: what kubelet would start, but for the namespaces."""
    places = {"/usr/local/bin": BUILD, "/usr/local/share/railyard/demo": os.path.join(SOURCE, "tests", "models", "demo"),
              "/run/railyard": f"{root}/run", "0.0.0.0:8000": f"127.0.0.1:{ports[0]}", "0.0.0.0:8001": f"127.0.0.1:{ports[1]}"}
    words = command_of(container)
    for there, here in places.items():
        words = [w.replace(there, here) for w in words]
    return Container(container["name"], words)


@test
def the_cpu_overlays_commands_serve_and_its_probe_tells_life_from_death():
    root = tempfile.mkdtemp(prefix="ry-pod-")
    try:
        os.mkdir(f"{root}/run")
        ports = (free_port(), free_port())
        spec = pod(build("cpu"))
        worker = run_in(root, spec["initContainers"][0], ports)  # the sidecar is there first
        router = run_in(root, spec["containers"][0], ports)

        def curl(port, path, *more):
            p = subprocess.run(["curl", "-s", "-o", "-", "-w", "\n%{http_code}", f"http://127.0.0.1:{port}{path}", *more],
                               capture_output=True, text=True, check=False)
            return p.stdout

        for kind in ("livenessProbe", "readinessProbe"):
            path = spec["containers"][0][kind]["httpGet"]["path"]
            wait_for(lambda path=path: curl(ports[1], path).endswith("200"), f"{kind} says 200")
        check_in("finish_reason", curl(ports[0], "/v1/chat/completions", "-H", "Content-Type: application/json", "-d",
                                       '{"messages":[{"role":"user","content":"Hi"}],"max_tokens":3}'), "answer")
        # All that it may come to take, and what the process has by now beside it.
        report = float(re.search(r"^  memory +([\d.]+) GiB in all", worker.log_text(), re.M).group(1)) * 2**30
        for p, program, more in ((worker, spec["initContainers"][0], report), (router, spec["containers"][0], 0)):
            asked = bytes_of(program["resources"]["requests"]["memory"])
            note(f"{program['name']}: asks for {asked / 2**30:.2f} GiB, takes up to {more / 2**30:.2f}, holds {held_bytes(p.pid) / 2**30:.3f}")
            check(asked >= more + held_bytes(p.pid), f"{program['name']} asks for {asked} bytes, takes {more}, holds {held_bytes(p.pid)}")
        probe = [w.replace("/run/railyard", f"{root}/run") for w in spec["initContainers"][0]["livenessProbe"]["exec"]["command"]]
        check_eq(subprocess.run(probe, check=False).returncode, 0, "the probe of a live worker")
        os.utime(f"{root}/run/alive-0", (1, 1))
        worker.signal(signal.SIGSTOP)
        os.utime(f"{root}/run/alive-0", (1, 1))
        check(subprocess.run(probe, check=False).returncode != 0, "the probe of a worker that stands still says that it lives")
        worker.signal(signal.SIGCONT)
        wait_for(lambda: subprocess.run(probe, check=False).returncode == 0, "the probe says that it lives again")
        worker.signal(signal.SIGTERM)
        check_eq(worker.wait(), 0, "exit status of the worker")
        router.signal(signal.SIGTERM)
        check_eq(router.wait(), 0, "exit status of the router")
    finally:
        shutil.rmtree(root, ignore_errors=True)


@test
def the_images_packages_are_what_the_programs_load():
    script = f". {shlex.quote(SOURCE)}/deploy/packages.sh; echo $packages_run"
    packages = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout.split()
    owned = set()
    for p in packages:
        listed = subprocess.run(["dpkg", "-L", p], capture_output=True, text=True, check=False)
        check_eq(listed.returncode, 0, f"dpkg -L {p}: {listed.stderr}")
        owned |= {os.path.basename(line) for line in listed.stdout.splitlines()}
    libc = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
    for program in ("railyard", "railyard-worker"):
        dump = subprocess.run(["readelf", "-d", os.path.join(BUILD, program)], capture_output=True, text=True, check=True).stdout
        wanted = set(re.findall(r"\(NEEDED\).*\[(.*)\]", dump))
        sanitizers = {w for w in wanted if re.match(r"lib(a|t|ub)san", w)}
        check_eq(wanted - owned - libc - sanitizers, set(), f"libraries of {program} that no package of the image has")
        note(f"{program}: {' '.join(sorted(wanted - libc))}")


main()
