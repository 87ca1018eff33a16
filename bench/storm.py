"""Measures how much a running job is slowed down while the clients of another job reconnect.

500 clients close their connections and reconnect at once, every second. Seconds with and without
storms alternate, on one server. In reality the clients are on other hosts. Here they run with the
idle policy of the scheduler, so that they use only the time that the running job and the server
leave."""

import argparse
import os
import statistics
import subprocess
import tempfile
import threading
import time

import cluster
import results
import systems


class Clients:
    def __init__(self, address, count):
        self.process = subprocess.Popen(
            [systems.program("bench/storm_clients"), f"--coordinator={address}",
             f"--members={count}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            preexec_fn=lambda: os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0)))
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError("the clients could not join")

    def storm(self, seconds):
        """Returns the number of storms, and how long they took in ms: the median and the longest.
        """
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        count, median, longest = self.process.stdout.readline().split()
        return int(count), float(median), float(longest)


def speed(steps, meanwhile):
    """Returns the steps per second and the longest step in ms during the call, and its result."""
    steps.mark()
    begin = time.monotonic()
    result = meanwhile()
    count, _, longest = steps.mark()
    return count / (time.monotonic() - begin), longest, result


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=500)
    parser.add_argument("--bytes", type=int, default=1 << 20, help="of the running job's model")
    parser.add_argument("--seconds", type=float, default=4, help="of each measurement")
    parser.add_argument("--turns", type=int, default=8)
    options = parser.parse_args()
    comparisons = results.Comparisons("storm")
    with tempfile.TemporaryDirectory() as directory:
        server, address = cluster.start_server(os.path.join(directory, "state"), "--lease=10m",
                                               "--stream_grace=10m")
        # Its output is read, because it would fill a pipe.
        threading.Thread(target=server.stdout.read, daemon=True).start()
        steps = cluster.Steps(address, f"--bytes={options.bytes}")
        clients = Clients(address, options.clients)
        try:
            pairs = cluster.in_pairs(
                options.turns, lambda: speed(steps, lambda: time.sleep(options.seconds)),
                lambda: speed(steps, lambda: clients.storm(options.seconds)))
        finally:
            for process in (steps.process, clients.process, server):
                process.kill()
                process.wait()
    storms = [storm for _, (_, _, storm) in pairs]
    ratios = [disturbed[0] / quiet[0] for quiet, disturbed in pairs]
    quiet, disturbed = (statistics.median(pair[i][0] for pair in pairs) for i in (0, 1))
    results.print_machine()
    results.print_table(
        ["clients", "", "storms", "ms each", "longest", "steps/s quiet", "steps/s in storms",
         "longest step, ms", "in storms"],
        [[f"{options.clients}", "", f"{sum(storm[0] for storm in storms)}",
          f"{statistics.median(storm[1] for storm in storms):.0f}",
          f"{max(storm[2] for storm in storms):.0f}", f"{quiet:.1f}", f"{disturbed:.1f}",
          f"{max(pair[0][1] for pair in pairs):.1f}", f"{max(pair[1][1] for pair in pairs):.1f}"]])
    print(f"ratio in each turn: {', '.join(f'{ratio:.3f}' for ratio in ratios)}")
    comparisons.add(f"{options.clients} clients reconnect every second", "steps/s in storms",
                    "quiet", disturbed, quiet, "steps/s", statistics.median(ratios), goal=0.9,
                    at_least=True)
    comparisons.close()


if __name__ == "__main__":
    main()
