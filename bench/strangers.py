"""Measures how much a client that misbehaves delays an honest job.

The honest job makes small steps and compares every result (tests/fault/honest). Its longest step is
measured three times, for the same duration: alone, while the client misbehaves towards another
server on this machine, and while it misbehaves towards the server of the honest job. The client and
the servers share the processors, so the second measurement shows what the client costs without the
server's help. The rows need an honest job on the server that they attack, so there the second
measurement has two honest jobs."""

import argparse
import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
import time

import cluster
import results
import systems

SCENARIOS = ["chunk_bomb", "repeats", "descriptors", "names", "job_names", "ends", "half_open",
             "partial", "gzip", "future_leave", "churn", "rows"]
# These need an honest job on the server that is attacked.
NEED_HONEST = {"rows"}
QUIET_STEPS = 500  # that the honest job makes before the client starts
UNITS = {"us": 1e-3, "ms": 1, "s": 1e3}


class Server:
    def __init__(self, state):
        self.state = state
        self.process, self.address = cluster.start_server(state, "--abandoned_job_ttl=1s",
                                                          "--lease=20s", "--reflection")
        # Its output is read, because it would fill a pipe.
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Honest:
    """The honest job. `later` has the statistics of its later steps after the end."""

    def __init__(self, address):
        self.process = subprocess.Popen([systems.program("tests/fault/honest"), f"--server={address}"],
                                        stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        for line in self.process.stdout:
            if line.strip() == f"step {QUIET_STEPS}":
                return self
        raise RuntimeError("the honest job has ended early")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        output = self.process.stdout.read()
        if self.process.wait() != 0:
            raise RuntimeError(f"the honest job failed:\n{output[-2000:]}")
        self.later = output[output.index("honest: later steps:"):]

    def longest(self):
        """Returns the duration of the longest step in ms, and the number of steps."""
        number, unit, steps = re.search(r"longest ([\d.]+)(\w+) of (\d+)", self.later).groups()
        return float(number) * UNITS[unit], int(steps)


def misbehave(scenario, server):
    # Debian's Python, which has gRPC.
    command = ["/usr/bin/python3", systems.program("tests/fault/misbehaviour.py"), scenario,
               f"--coordinator={server.address}", f"--pid={server.process.pid}",
               f"--state={server.state}", f"--stubs={systems.program('tests/integration/stubs')}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def measure(scenario, where, seconds):
    """Returns the longest step in ms, the number of steps, and the duration in seconds."""
    with tempfile.TemporaryDirectory() as directory, \
         Server(os.path.join(directory, "one")) as own, \
         Server(os.path.join(directory, "two")) as other:
        second = Honest(other.address) if where == "elsewhere" and scenario in NEED_HONEST \
            else contextlib.nullcontext()
        with Honest(own.address) as honest, second:
            begin = time.monotonic()
            if where == "alone":
                time.sleep(seconds)
            else:
                misbehave(scenario, own if where == "here" else other)
            took = time.monotonic() - begin
    return *honest.longest(), took


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=SCENARIOS, action="append",
                        help="of tests/fault/misbehaviour.py; default: all")
    parser.add_argument("--turns", type=int, default=5, help="of each measurement")
    options = parser.parse_args()
    comparisons = results.Comparisons("strangers")
    rows = []
    for scenario in options.case or SCENARIOS:
        turns = {"here": [], "elsewhere": [], "alone": []}
        for _ in range(options.turns):
            seconds = 0
            for where, measured in turns.items():
                longest, steps, took = measure(scenario, where, seconds)
                measured.append(longest)
                if where == "here":
                    seconds = max(took, 1)
        # Over all turns: in a single short one, whether a step is interrupted is a matter of luck.
        most = {where: max(measured) for where, measured in turns.items()}
        rows.append([scenario, f"{steps} steps",
                     *(f"{most[where]:.1f}" for where in ("alone", "elsewhere", "here"))])
        for where, goal in (("alone", 2), ("elsewhere", None)):
            comparisons.add(scenario, "longest step", where, most["here"], most[where], "ms",
                            most["here"] / most[where], goal=goal)
    results.print_machine()
    results.print_table(["scenario", "", "alone, ms", "elsewhere, ms", "here, ms"], rows)
    comparisons.close()


if __name__ == "__main__":
    main()
