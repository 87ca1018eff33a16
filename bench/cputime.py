"""Shows how the CPU time of a step is spent: ours compared with peers.

Each system makes its steps alone, while perf samples all processors 997 times per second. Samples
are assigned to a few kinds by the names of functions; all others are counted as "other". Needs perf
and root.
"""

import argparse
import collections
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import conductor
import network
import results
import systems

# (kind, pattern for the library, pattern for the function). The first match counts.
KINDS = [
    ("idle", "kernel", r"safe_halt|cpuidle|native_halt|poll_idle|do_idle|tick_nohz_idle"),
    ("kernel: copying", "kernel", r"copy_(to|from)_iter|copy_user|rep_movs|copy_page|clear_page"),
    ("kernel: switching threads", "kernel",
     r"finish_task_switch|schedule|futex|try_to_wake|wake_up|enqueue|dequeue_(task|entity)|"
     r"pick_next|update_curr|ep_|epoll|select_task|spin_unlock_irq|pv_queued|rseq|eventfd"),
    ("kernel: network", "kernel",
     r"tcp|inet|ip_|ipv4|skb|sock|net_|netif|napi|veth|br_|nf_|tbf|qdisc|dev_|xmit|unix_|bbr|"
     r"softirq|backlog|eth_|neigh|sendmsg|recvmsg|rt_|fib_|bridge|hrtimer"),
    ("kernel: other", "kernel", r""),
    ("copying and filling", "libc", r"mem(move|cpy|set)"),
    ("copying and filling", r"ours_worker|ps-server", r"Copy|Scatter"),
    ("the benchmark's own checks", r"_worker|tcp_flow|grpc_echo", r"Values|IsRight|Fill|Check"),
    ("adding up", r"ours_worker|ps-server", r"Reduce|Average|Sum|Update|XXH|Checksum"),
    ("adding up", r"gloo|mpi|libopen|_worker", r"sum|op_|reduce"),
    ("encryption", r"libcrypto|libssl", r""),
    ("gRPC and Abseil", r"grpc|libgpr|absl|libprotobuf", r""),
    ("memory and locks", r"libc\.|libstdc|ld-linux|vdso", r""),
    ("ours", r"ours_worker|ps-server", r""),
]


def kind_of(library, function):
    library = "kernel" if library.startswith("[kernel") else library
    for kind, libraries, functions in KINDS:
        if re.search(libraries, library) and re.search(functions, function):
            return kind
    return "other"


def read_report(path):
    """Returns the fraction of all samples for each kind."""
    report = subprocess.run(
        ["perf", "report", "-i", path, "--stdio", "-t", "|", "--sort=dso,sym",
         "--percent-limit=0"], capture_output=True, text=True, check=True).stdout
    parts = collections.Counter()
    for line in report.splitlines():
        fields = [field.strip() for field in line.split("|")]
        if line.startswith("#") or len(fields) < 3 or not fields[0].endswith("%"):
            continue
        parts[kind_of(fields[1], fields[2])] += float(fields[0][:-1]) / 100
    return parts


def profile(system, seconds, scratch):
    """Returns the milliseconds of processor time in a step for each kind."""
    system.block(2)
    system.samples = conductor.Samples()
    system.block(2)
    steps = max(2, int(seconds / statistics.median(system.samples.step_s)))
    path = os.path.join(scratch, "perf.data")
    # perf stops when its command ends, so the steps have to continue for longer than that.
    block = threading.Thread(target=system.block, args=(int(1.3 * steps),))
    system.samples = conductor.Samples()
    block.start()
    time.sleep(0.1 * seconds)
    subprocess.run(["perf", "record", "-a", "-F", "997", "-o", path, "--", "sleep", str(seconds)],
                   capture_output=True, check=True)
    block.join()
    step_ms = 1e3 * statistics.mean(system.samples.step_s)
    return {kind: part * step_ms * os.cpu_count() for kind, part in read_report(path).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="n2-97.5MiB", help="N and S")
    parser.add_argument("--rate", help="over links of this rate between namespaces, as 200mbit")
    parser.add_argument("--ours", default="tcp", type=lambda text: text.split(","),
                        help="paths with settings (systems.Ours)")
    parser.add_argument("--peers", default="gloo-ring",
                        type=lambda text: text.split(",") if text else [])
    parser.add_argument("--seconds", type=float, default=8, help="of each system")
    parser.add_argument("--quick", action="store_true", help="for a short time")
    options = parser.parse_args()
    if options.quick:
        options.seconds = 2
    match = re.fullmatch(r"n([0-9]+)-(.+)", options.case)
    if not match:
        parser.error(f"{options.case} is no case; say n2-97.5MiB")
    n, size = int(match[1]), systems.parse_bytes(match[2])

    results.print_machine()
    print()
    columns = {}

    def run(work):
        starters = [(name, lambda scratch, name=name: systems.Ours(name, work, scratch))
                    for name in options.ours]
        starters += [(name, lambda scratch, name=name: systems.peer(name, work, scratch))
                     for name in options.peers]
        for name, start in starters:
            with tempfile.TemporaryDirectory(prefix="sg-") as scratch:
                system = start(scratch)
                try:
                    columns[name] = profile(system, options.seconds, scratch)
                finally:
                    system.stop()

    try:
        if options.rate:
            with network.Network(2 * n, options.rate) as cluster:
                run(systems.Work(n, size, cluster.hosts[:n], cluster.hosts[n:]))
        else:
            run(systems.Work(n, size))
    except conductor.Failure as failure:
        sys.exit(f"cputime: {failure}")
    kinds = sorted({kind for column in columns.values() for kind in column},
                   key=lambda kind: -max(column.get(kind, 0) for column in columns.values()))
    print(f"{options.case}: ms of {os.cpu_count()} processors' time for each step")
    results.print_table(["kind", ""] + list(columns),
                        [[kind, ""] + [f"{column.get(kind, 0):.1f}" for column in columns.values()]
                         for kind in kinds])


if __name__ == "__main__":
    main()
