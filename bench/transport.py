"""Measures the CPU time of the transport alone. There is one worker, so nothing is summed.

In a step, S bytes are sent to a server and back. For comparison, the same bytes make a round trip
on a bare socket and on a bare gRPC stream. The result is the user and system CPU time of both ends
for each GB that is transferred. It hardly depends on other load on the machine.
"""

import argparse
import fnmatch
import functools
import sys

import conductor
import results
import systems

SIZES = ("1MiB", "16MiB", "97.5MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", default="*", help="only sizes like this, as 97.5MiB or *MiB")
    parser.add_argument("--quick", action="store_true", help="for a short time")
    parser.add_argument("--ours", default="tcp+server.state=none,unix+server.state=none",
                        type=lambda text: text.split(","),
                        help="paths with settings, as tcp,tcp+connections=1 (systems.Ours)")
    parser.add_argument("--peers", default="tcp-echo,grpc-stream",
                        type=lambda text: text.split(","))
    parser.add_argument("--congestion", default="",
                        help="TCP congestion control for all; empty: the kernel's default")
    options = parser.parse_args()
    seconds = 3 if options.quick else 20

    results.print_machine()
    print()
    comparisons = results.Comparisons("transport")
    rows = []
    try:
        for size in fnmatch.filter(SIZES, options.case):
            work = systems.Work(1, systems.parse_bytes(size), congestion=options.congestion)
            running = conductor.compare(
                [functools.partial(systems.Ours, variant, work) for variant in options.ours] +
                [functools.partial(systems.peer, name, work) for name in options.peers],
                seconds, 0.25)
            ours, peers = running[:len(options.ours)], running[len(options.ours):]
            gigabytes = 2 * work.bytes / 1e9
            for system in running:
                samples = system.samples
                rows.append([size, system.name, f"{samples.median_ms():.2f}",
                             f"{samples.cpu_ms() / 1e3 / gigabytes:.3f}", str(len(samples.step_s))] +
                            [f"{samples.cpu_ms() / peer.samples.cpu_ms():.2f}" for peer in peers])
            for system in ours:
                for peer in peers:
                    a, b = system.samples.cpu_ms(), peer.samples.cpu_ms()
                    is_goal = (size == "97.5MiB" and peer.name == "tcp-echo"
                               and system.name.startswith("tcp"))
                    comparisons.add(f"{size} CPU", system.name, peer.name,
                                    a / 1e3 / gigabytes, b / 1e3 / gigabytes, "s/GB", a / b,
                                    1.3 if is_goal else None)
    except conductor.Failure as failure:
        sys.exit(f"transport: {failure}")
    finally:
        results.print_table(["S", "system", "p50 ms", "CPU s per GB", "steps"]
                            + [f"× {name}" for name in options.peers], rows)
        comparisons.close()


if __name__ == "__main__":
    main()
