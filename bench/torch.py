"""Measures what averaging costs a PyTorch trainer: syncgrads.torch beside DistributedDataParallel
over gloo.

All systems of a case run on the same machine and take turns. One of them, "alone", makes the same
steps without averaging: "sync" is the difference to it. For tiny there is another one, "ddp-alone",
with a DistributedDataParallel whose hook averages nothing: what it costs is not Python's overhead in
syncgrads.torch.ddp. The cases are:

  nN           the 161 gradients of a ResNet-50 (97.5 MiB), which backward writes without computing;
               N processes and one server on this machine
  resnet18-nN  whole steps of a ResNet-18 on 32 images of 32×32 pixels
  net-nN       as nN, over simulated links, with N hosts for workers and N for servers; needs root
  tiny-nN      161 gradients of one element, beside workers in C++: the overhead of Python
"""

import argparse
import functools
import os
import re
import shutil
import sys
import tempfile

import conductor
import network
import results
import systems

CASES = ("n2", "n4", "resnet18-n2", "resnet18-n4", "net-n4", "tiny-n2")
WORKS = {"": "gradients", "resnet18-": "resnet18", "net-": "gradients", "tiny-": "tiny"}
OURS = ("optimizer", "hook")
TENSORS = 161


def goal(kind, workers, rate):
    """Returns the goal: the longest time that ours may take, relative to DDP's. It is the time of
    the whole step for resnet18, and of the averaging otherwise."""
    if kind == "net-":
        return 0.75 if workers == 4 and rate == "200mbit" else None
    return {"": 0.4, "resnet18-": 1.0}.get(kind) if workers in (2, 4) else None


# The largest overhead of Python: the time of the processor, in ms, for a worker and a step. The
# duration of such short steps depends on how fast threads wake.
OVERHEAD_GOAL = 1.0


class Torch(conductor.System):
    """Python processes that make steps with PyTorch (bench/peers/torch_step.py)."""

    def __init__(self, name, step, python, work, scratch):
        self.state = tempfile.mkdtemp(prefix="syncgrads-bench-", dir="/dev/shm")
        super().__init__(name, scratch, name, step, python, work)

    def stop(self):
        super().stop()
        shutil.rmtree(self.state)

    def start(self, name, step, python, work):
        package = systems.program("client/python/syncgrads/__init__.py")
        environment = {"PYTHONPATH": os.path.dirname(os.path.dirname(package)),
                       "SYNCGRADS_LIBRARY": systems.program("client/c/libsyncgrads.so"),
                       "GLOO_SOCKET_IFNAME": work.host(0).interface,
                       # Freed memory stays with the process. Otherwise "alone", which frees all
                       # gradients at once, returns them to the kernel and gets new pages in each
                       # step, which takes longer than averaging.
                       "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
                       "MALLOC_TRIM_THRESHOLD_": str(1 << 30)}
        flags = [f"--system={name}", f"--work={step}", f"--conductor={self.socket_path}",
                 f"--world_size={work.workers}", f"--meeting={self.directory}/meeting"]
        if name in OURS:
            flags.append(f"--server={self._start_servers(work)}")
            if work.hosts:
                flags.append("--tcp")
        for rank in range(work.workers):
            self.launch(work.host(rank).command(
                [python, systems.program("bench/peers/torch_step.py"), f"--rank={rank}"] + flags),
                environment)
        self.accept(work.workers)

    def _start_servers(self, work):
        """Returns the address of server 0."""
        hosts = work.server_hosts or [systems.LOOPBACK]
        path_flags = systems.PATHS["tcp" if work.hosts else "shared"]["server"]
        coordinator = ""
        for index, host in enumerate(hosts):
            command = [systems.program("server/ps-server"), f"--bind={host.address}", "--port=0", "--insecure",
                       f"--index={index}", f"--state={self.state}/{index}"] + path_flags
            command += [f"--coordinator={coordinator}"] if index else [f"--servers={len(hosts)}"]
            address = self.launch_server(host.command(command), "listening on ")
            coordinator = coordinator or address
        return coordinator


def run(kind, workers, options):
    """Starts the systems of a case, lets them take turns, and returns them by name."""
    def starters(work):
        names = ("ddp-alone" if kind == "tiny-" else "ddp", *options.ours)
        made = [functools.partial(Torch, name, WORKS[kind], options.python, work)
                for name in ("alone", *names)]
        if kind == "tiny-":
            variant = f"shared-ordinary+tensors={TENSORS}"
            made.append(functools.partial(systems.Ours, variant, work))
        return made

    if kind == "net-":
        with network.Network(2 * workers, options.rate) as cluster:
            work = systems.Work(workers, 0, cluster.hosts[:workers], cluster.hosts[workers:])
            running = conductor.compare(starters(work), options.net_seconds, 0.5)
    else:
        work = systems.Work(workers, 4 * TENSORS)
        running = conductor.compare(starters(work), options.seconds, options.block)
    return {system.name: system.samples for system in running}


def measure(case, kind, workers, options, comparisons):
    running = run(kind, workers, options)
    alone, alone_cpu = running["alone"].median_ms(), running["alone"].cpu_ms()
    rows = []
    for name, samples in running.items():
        averages = name in ("ddp", *options.ours)
        rows.append([case, name, f"{samples.median_ms():.4g}",
                     f"{samples.percentile_ms(10):.4g}–{samples.percentile_ms(90):.4g}",
                     f"{samples.cpu_ms():.4g}", str(len(samples.step_s)),
                     f"{samples.median_ms() - alone:.3g}" if averages else "",
                     f"{samples.cpu_ms() - alone_cpu:.3g}" if averages else ""])
    results.print_table(["case", "system", "median ms", "p10–p90", "CPU ms", "steps", "sync ms",
                         "sync CPU ms"], rows)
    print(flush=True)
    for name in options.ours:
        ours = running[name].median_ms()
        if kind == "tiny-":
            native = next(samples for other, samples in running.items() if "+" in other).cpu_ms()
            without = running["ddp-alone"].cpu_ms() if name == "hook" else alone_cpu
            with_python = running[name].cpu_ms() - without
            comparisons.add(f"{case} overhead in ms of CPU, per worker", name, "C++", with_python,
                            native, "ms", (with_python - native) / workers, OVERHEAD_GOAL)
            continue
        ddp = running["ddp"].median_ms()
        whole = kind == "resnet18-"
        comparisons.add(f"{case} step", name, "ddp", ours, ddp, "ms", ours / ddp,
                        goal(kind, workers, options.rate) if whole else None)
        comparisons.add(f"{case} sync", name, "ddp", ours - alone, ddp - alone, "ms",
                        (ours - alone) / (ddp - alone),
                        None if whole else goal(kind, workers, options.rate),
                        ours_cpu_ms=running[name].cpu_ms() - alone_cpu,
                        peer_cpu_ms=running["ddp"].cpu_ms() - alone_cpu)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default=",".join(CASES), help="cases, with commas between them")
    parser.add_argument("--quick", action="store_true", help="n2, resnet18-n2 and tiny-n2, shortly")
    parser.add_argument("--ours", default=OURS, type=lambda text: text.split(","))
    parser.add_argument("--rate", default="200mbit", help="of each link, each direction")
    parser.add_argument("--seconds", type=float, help="how long a case takes")
    parser.add_argument("--net_seconds", type=float, default=120,
                        help="how long a case over links takes")
    parser.add_argument("--block", type=float, help="how long one turn takes, in seconds")
    parser.add_argument("--python", default="/usr/bin/python3", help="one that has torch")
    options = parser.parse_args()
    if options.quick and options.case == ",".join(CASES):
        options.case = "n2,resnet18-n2,tiny-n2"
    options.seconds = options.seconds or (4 if options.quick else 40)
    options.block = options.block or (0.3 if options.quick else 1)

    results.print_machine()
    print()
    comparisons = results.Comparisons("torch")
    try:
        for case in options.case.split(","):
            match = re.fullmatch(r"(|resnet18-|net-|tiny-)n(\d+)", case)
            if not match:
                raise SystemExit(f"{case} is no case; say {', '.join(CASES)}")
            measure(case, match[1], int(match[2]), options, comparisons)
    except conductor.Failure as failure:
        sys.exit(f"torch: {failure}")
    finally:
        comparisons.close()


if __name__ == "__main__":
    main()
