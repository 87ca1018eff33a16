"""The same work over links of a given rate: ours compared with gloo's ring and OpenMPI.

There are n worker hosts and n server hosts. Each is a network namespace with a full-duplex link of
its own. In the case "tcp" the servers are on their own hosts; in "tcp on workers" they are on the
workers' hosts. For comparison, one bare TCP flow sends S bytes from one host to another; this is
the speed that the link allows.
"""

import argparse
import fnmatch
import functools
import re
import sys

import conductor
import network
import results
import systems

CASES = {"n4": 4, "n8": 8}


def goal(where, peer, n, size):
    """Returns the goal: the longest time that ours may take, relative to the peer's time."""
    if size != "16MiB":
        return None
    if where == "workers":
        return 1.05 if peer == "gloo-ring" else None
    return {"tcp-send": 1.10, "gloo-ring": {4: 1 / 1.35, 8: 1 / 1.9}.get(n)}.get(peer)


# The longest time that ours may take with a codec in both directions, relative to ours without a
# codec.
CODEC_GOALS = {"int8": 1 / 3.5, "top-k": 1 / 15}


def compare_codecs(case, systems_of_ours, options, comparisons):
    """Compares each variant of ours that has a codec with the same variant without it."""
    by_name = {system.name: system for system in systems_of_ours}
    for name, system in by_name.items():
        codec = re.search(r"\+codec=([a-z0-9-]+)", name)
        plain = codec and by_name.get(name.replace(codec.group(0), ""))
        if not plain:
            continue
        a, b = system.samples.median_ms(), plain.samples.median_ms()
        goal_of_codec = CODEC_GOALS.get(codec.group(1)) if options.rate == "200mbit" else None
        comparisons.add(f"{case} {options.size} {options.rate}", name, plain.name, a, b, "ms",
                        a / b, goal_of_codec)


def measure(case, n, options, comparisons):
    size = systems.parse_bytes(options.size)
    peers = options.peers
    with network.Network(2 * n, options.rate) as cluster:
        workers, servers = cluster.hosts[:n], cluster.hosts[n:]
        apart = systems.Work(n, size, workers, servers, options.congestion)
        together = systems.Work(n, size, workers, workers, options.congestion)
        starters, where = [], []
        for variant in options.ours:
            for place, work in (("servers", apart), ("workers", together)):
                starters.append(functools.partial(systems.Ours, variant, work))
                where.append(place)
        starters += [functools.partial(systems.peer, name, apart) for name in peers]
        running = conductor.compare(starters, options.seconds, 0.5)
    ours, others = running[:len(where)], running[len(where):]
    for system, place in zip(ours, where):
        if place == "workers":
            system.name += " on workers"
    bound = size * 8 / network.bits_per_second(options.rate) * 1e3
    rows = []
    for system in running:
        samples = system.samples
        rows.append([case, system.name, f"{samples.median_ms():.0f}",
                     f"{samples.percentile_ms(10):.0f}–{samples.percentile_ms(90):.0f}",
                     f"{samples.cpu_ms():.0f}", str(len(samples.step_s)),
                     f"{samples.median_ms() / bound:.2f}"]
                    + [f"{samples.median_ms() / other.samples.median_ms():.2f}"
                       for other in others])
    for system, place in zip(ours, where):
        for other in others:
            a, b = system.samples, other.samples
            comparisons.add(f"{case} {options.size} {options.rate}", system.name, other.name,
                            a.median_ms(), b.median_ms(), "ms", a.median_ms() / b.median_ms(),
                            goal(place, other.name, n, options.size),
                            ours_cpu_ms=a.cpu_ms(), peer_cpu_ms=b.cpu_ms(), bound_ms=bound)
    compare_codecs(case, ours, options, comparisons)
    print(f"S = {options.size} at {options.rate}: S × 8 / rate = {bound:.0f} ms")
    results.print_table(["case", "system", "median ms", "p10–p90", "CPU ms", "steps", "× bound"]
                        + [f"× {other.name}" for other in others], rows)
    print(flush=True)
    return running


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="*", help="n4, n8, or any nN")
    parser.add_argument("--quick", action="store_true", help="4 MiB, for a short time")
    parser.add_argument("--size", help="S; 16MiB if not quick")
    parser.add_argument("--rate", default="200mbit", help="of each link, each direction")
    parser.add_argument("--ours", default="tcp", type=lambda text: text.split(","),
                        help="paths with settings, as tcp,tcp+codec=int8 (systems.Ours)")
    parser.add_argument("--peers", default="gloo-ring,openmpi-tcp,tcp-send",
                        type=lambda text: text.split(",") if text else [])
    parser.add_argument("--congestion", default="",
                        help="TCP congestion control for all; empty: the kernel's default")
    parser.add_argument("--seconds", type=float, help="how long a case takes")
    options = parser.parse_args()
    options.size = options.size or ("4MiB" if options.quick else "16MiB")
    options.seconds = options.seconds or (5 if options.quick else 60)

    cases = {name: n for name, n in CASES.items() if fnmatch.fnmatch(name, options.case)}
    if options.quick and options.case == "*":
        cases = {"n4": 4}
    if not cases and options.case[:1] == "n" and options.case[1:].isdigit():
        cases = {options.case: int(options.case[1:])}
    results.print_machine()
    print()
    comparisons = results.Comparisons("net")
    series = {}
    try:
        for case, n in cases.items():
            for system in measure(case, n, options, comparisons):
                line = series.setdefault(system.name, {"name": system.name, "x": [], "y": [],
                                                       "low": [], "high": []})
                line["x"].append(n)
                line["y"].append(system.samples.median_ms())
                line["low"].append(system.samples.percentile_ms(10))
                line["high"].append(system.samples.percentile_ms(90))
    except conductor.Failure as failure:
        sys.exit(f"net: {failure}")
    finally:
        comparisons.close()
    results.plot("net", f"one step of {options.size} over links of {options.rate}", "N", "ms",
                 [{"title": "as many servers as workers", "series": list(series.values())}])


if __name__ == "__main__":
    main()
