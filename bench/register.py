"""Measures how the registration of a large group affects another job on the same server.

One client registers a group of some GiB while a small job makes steps. The report has: the longest
step of that job during the registration, compared with its median; the number of members that were
dropped; the time until the group is ready, compared with the time to touch as much memory of the
same kind once; and the time to register 100,000 tensors.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time

import cluster
import results
import systems

GIB = 1 << 30
TENSORS = 100_000
# A server keeps two results of each chunk.
COPIES = 2
# A server registers a group only if a contribution of each member, here one, fits beside them.
CONTRIBUTIONS = 1
PATIENCE = 600


class Server:
    """A ps-server with its state in memory, and a small job that makes steps on it."""

    def __init__(self, options):
        self.directory = tempfile.mkdtemp(prefix="syncgrads-bench-", dir="/dev/shm")
        self.log_path = os.path.join(self.directory, "log")
        with open(self.log_path, "w") as log:
            self.server = subprocess.Popen(
                [systems.program("server/ps-server"), "--port=0", "--bind=127.0.0.1",
                 f"--lease={options.lease}s", f"--state={self.directory}/state"],
                stdout=log, stderr=log)
        self.address = self._address()
        self.steps = cluster.Steps(self.address)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in (self.steps.process, self.server):
            process.kill()
            process.wait()
        shutil.rmtree(self.directory)

    def command(self, role, *flags):
        return [systems.program("bench/register_worker"), f"--role={role}",
                f"--coordinator={self.address}", *flags]

    def log(self):
        with open(self.log_path) as log:
            return log.read()

    def _address(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for line in self.log().splitlines():
                if " listening on " in line:
                    return "127.0.0.1:" + line.rsplit(":", 1)[1]
            time.sleep(0.01)
        sys.exit(f"register: the server does not listen:\n{self.log()}")

    def dropped(self):
        return sum("was dropped" in line or "is dropped" in line
                   for line in self.log().splitlines())

    def register(self, size, tensors):
        done = subprocess.run(
            self.command("register", f"--bytes={size}", f"--tensors={tensors}"),
            stdout=subprocess.PIPE, text=True, timeout=PATIENCE)
        return float(done.stdout) if done.returncode == 0 else float("inf")

    def touch(self, size, threads):
        done = subprocess.run(
            self.command("touch", f"--bytes={size}", f"--threads={threads}",
                         f"--file={self.directory}/touched"),
            stdout=subprocess.PIPE, text=True, timeout=PATIENCE, check=True)
        return float(done.stdout)


def measure(size, tensors, options):
    """Measures the job's steps without and during a registration, and the time of the registration.
    """
    with Server(options) as server:
        if server.steps.mark() is None:
            sys.exit(f"register: the small job has ended:\n{server.log()}")
        time.sleep(options.seconds)
        alone = server.steps.mark()
        # The host of a virtual machine reclaims memory that has been free for some seconds, and
        # memory that it has to provide again takes up to ten times as long to clear. So the first
        # registration and the first touch are not counted: each leaves its pages to the second.
        first = server.register(size, tensors)
        slowest_of_first = server.steps.mark()
        ready = server.register(size, tensors)
        meanwhile = server.steps.mark()
        dropped = server.dropped()
    with Server(options) as server:
        server.touch(COPIES * size, options.threads)
        touched = server.touch(COPIES * size, options.threads)
    if meanwhile and slowest_of_first:
        meanwhile = (*meanwhile[:2], max(meanwhile[2], slowest_of_first[2]))
    return alone, meanwhile, first, ready, dropped, touched


def sizes_that_fit(options):
    room = shutil.disk_usage("/dev/shm").free
    with open("/proc/meminfo") as meminfo:
        available = next(int(line.split()[1]) for line in meminfo
                         if line.startswith("MemAvailable:")) * 1024
    sizes = [systems.parse_bytes(size) for size in options.sizes.split(",")]
    times = COPIES + CONTRIBUTIONS
    fitting = [size for size in sizes if 1.05 * times * size < min(room, available)]
    for size in sizes:
        if size not in fitting:
            print(f"{systems.show_bytes(size)} is left out: a server needs {times} times as much, "
                  f"and {min(room, available) / GIB:.1f} GiB are free")
    return fitting


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="", help="of the group; default: 1GiB,4GiB,8GiB")
    parser.add_argument("--quick", action="store_true", help="256MiB, where no size is given")
    parser.add_argument("--seconds", type=float, default=3, help="of steps before it")
    parser.add_argument("--lease", type=float, default=30, help="of a member, in seconds")
    parser.add_argument("--threads", type=int, default=1,
                        help="that touch memory, as many as the server has for it")
    options = parser.parse_args()
    if not options.sizes:
        options.sizes = "256MiB" if options.quick else "1GiB,4GiB,8GiB"

    results.print_machine()
    comparisons = results.Comparisons("register")
    rows = []
    for size in sizes_that_fit(options):
        case = systems.show_bytes(size)
        alone, meanwhile, first, ready, dropped, touched = measure(size, 1, options)
        median = alone[1]
        longest = meanwhile[2] if meanwhile else float("inf")
        rows.append([case, f"{alone[0]} steps before", f"{median:.2f}", f"{alone[2]:.1f}",
                     f"{longest:.1f}", str(dropped), f"{first:.2f}", f"{ready:.2f}",
                     f"{touched:.2f}"])
        bound = max(3 * median, 50)
        comparisons.add(f"{case}: longest step", "meanwhile", "bound", longest, bound, "ms",
                        longest / bound, goal=1)
        comparisons.add(f"{case}: members dropped", "dropped", "none", dropped, 0, "members",
                        dropped, goal=0)
        comparisons.add(f"{case}: until it is ready", "register", "touch", ready, touched, "s",
                        ready / touched, goal=1.3)
    with Server(options) as server:
        server.steps.mark()
        many = server.register(TENSORS * 256, TENSORS)
        meanwhile = server.steps.mark()
    longest = meanwhile[2] if meanwhile else float("inf")
    rows.append([f"{TENSORS} tensors", "", "", "", f"{longest:.1f}", "", f"{many:.2f}", "",
                 ""])
    comparisons.add(f"{TENSORS} tensors", "register", "one second", many, 1, "s", many, goal=1)
    results.print_table(["group", "", "median ms", "longest before", "longest meanwhile",
                         "dropped", "s until ready", "again", "s to touch"], rows)
    comparisons.close()


if __name__ == "__main__":
    main()
