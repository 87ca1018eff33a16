"""Clients that misbehave towards a server; each run executes one scenario.

The exit code is 0 if the server reacted correctly: with an error that names the limit, or by
continuing if nothing is wrong. Otherwise the error is printed, and the exit code is 1. The caller
(misbehaviour_test.cc) checks which resources the server still holds afterwards.
"""

import argparse
import os
import queue
import random
import resource
import socket
import struct
import sys
import threading
import time

import grpc

PATIENCE = 60  # the timeout of every wait, in seconds
MIB = 1 << 20
# The codes (google.rpc.Code) of refusals because of a limit.
LIMITS = {3: "INVALID_ARGUMENT", 8: "RESOURCE_EXHAUSTED"}
# The statuses of streams that a server ends because the client does not follow the protocol.
CUTS = {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION}


class Failure(Exception):
    """The server did not react correctly."""


class Peer:
    """A member of a job, or a client that tries to become one."""

    def __init__(self, options, reads=True):
        self.options = options
        self.incarnation = random.getrandbits(64) | 1
        self.channel = channel(options.coordinator)
        self.outgoing = queue.Queue()
        self.answers = control_grpc.ControlStub(self.channel).Join(iter(self.outgoing.get, None))
        self.signals = queue.Queue()
        self.requests = 0
        if reads:
            self.read()

    def read(self):
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for signal in self.answers:
                self.signals.put(signal)
        except grpc.RpcError as error:
            self.signals.put(error)

    def next(self, patience=PATIENCE):
        try:
            return self.signals.get(timeout=patience)
        except queue.Empty:
            raise Failure(f"no signal within {patience} s") from None

    def hello(self, job, **more):
        fields = {"protocol_version": 2, "job": job, "incarnation": self.incarnation, "rank": 0,
                  "world_size": 1, "host": "stranger"}
        self.job = job
        self.outgoing.put(control.WorkerSignal(hello=control.Hello(**{**fields, **more})))

    def join(self, job, **more):
        self.hello(job, **more)
        welcome = self.wait_for("welcome")
        self.generation, self.member = welcome.generation, welcome.welcome.member
        self.addresses = welcome.welcome.servers
        interval = welcome.welcome.heartbeat_interval_ms / 1000
        threading.Thread(target=self._beat, args=(interval,), daemon=True).start()
        return self

    def _beat(self, interval):
        while True:
            time.sleep(interval)
            self.outgoing.put(control.WorkerSignal(heartbeat=control.Heartbeat()))

    def wait_for(self, *kinds):
        deadline = time.monotonic() + PATIENCE
        while True:
            signal = self.next(max(0.01, deadline - time.monotonic()))
            if isinstance(signal, grpc.RpcError):
                raise signal
            if signal.WhichOneof("kind") in kinds:
                return signal

    def send(self, **kind):
        self.outgoing.put(control.WorkerSignal(**kind))

    def request(self):
        self.requests += 1
        return self.requests

    def register(self, spec):
        self.send(register_group=control.RegisterGroup(request=self.request(), spec=spec))

    def registered(self, spec):
        self.register(spec)
        return self.wait_for("registered").registered.plan

    def exchange(self):
        """Opens a data stream. Returns a queue for pushes, and an iterator of the answers."""
        pushes = queue.Queue()
        stub = data_grpc.DataStub(channel(self.addresses[0] or self.options.coordinator))
        updates = stub.Exchange(iter(pushes.get, None), wait_for_ready=True)
        pushes.put(data.PushChunk(generation=self.generation, hello=data.DataHello(
            protocol_version=2, job=self.job, member=self.member, incarnation=self.incarnation)))
        return pushes, updates

    def push(self, round_, payload, epoch=1, group=0, chunk=0):
        return data.PushChunk(generation=self.generation, group=group, chunk=chunk, round=round_,
                              member=self.member, incarnation=self.incarnation, epoch=epoch,
                              weight=1, payload=payload)


def channel(address):
    return grpc.insecure_channel(address, options=[
        ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1)])


def spec_of(name, elements, dtype=None, **more):
    return types.GroupSpec(
        name=name, tensors=[types.TensorSpec(name="t", dtype=dtype or types.F32, shape=[elements])],
        rule=types.UpdateRule(reduction=types.AVERAGE), **more)


def expect_refusal(peer, what):
    """Expects that the next answer, or the end of the stream, is a refusal because of a limit."""
    try:
        signal = peer.wait_for("registered", "done", "refused", "expelled", "welcome")
    except grpc.RpcError as error:
        if error.code().value[0] in LIMITS:
            return print(f"{what}: {error.code().name}: {error.details()[:200]}")
        raise Failure(f"{what}: the stream ended with {error.code().name}: "
                      f"{error.details()[:200]}") from None
    kind = signal.WhichOneof("kind")
    error = {"refused": signal.refused.error, "expelled": signal.expelled}.get(kind)
    if error is None:
        raise Failure(f"{what} was accepted ({kind})")
    if error.code not in LIMITS:
        raise Failure(f"{what} was refused with code {error.code}: {error.message[:200]}")
    return print(f"{what}: {LIMITS[error.code]}: {error.message[:200]}")


def resident(pid):
    with open(f"/proc/{pid}/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def chunk_bomb(options):
    """A group of few bytes in very many chunks."""
    peer = Peer(options).join("bomb")
    peer.register(spec_of("bomb", 1 << 17, types.F64, chunk_bytes=8))
    expect_refusal(peer, "a group of 1 MiB in 131072 chunks")


def repeats(options):
    """Repeats the same registration, and does not read the answers."""
    peer = Peer(options, reads=False)
    peer.hello("repeats")
    spec = spec_of("model", 1 << 22, chunk_bytes=4096)
    peer.register(spec)
    for signal in peer.answers:
        if signal.WhichOneof("kind") == "registered":
            plan = signal.ByteSize()
            break
    before = resident(options.pid)
    # The answers have half a gigabyte in all.
    for _ in range((512 << 20) // plan):
        peer.register(spec)
    deadline = time.monotonic() + 15
    most = 0
    while time.monotonic() < deadline:
        most = max(most, resident(options.pid) - before)
        time.sleep(0.05)
    if most > 64 * MIB:
        raise Failure(f"answers that nobody reads took {most >> 20} MiB of the server")
    print(f"answers of {plan >> 10} KiB that nobody reads took {most >> 20} MiB of the server")


def descriptors(options):
    """Opens more connections than the server has descriptors, for one second."""
    used = len(os.listdir(f"/proc/{options.pid}/fd"))
    soft, hard = resource.prlimit(options.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(options.pid, resource.RLIMIT_NOFILE, (used + 40, hard))
    host, port = options.coordinator.rsplit(":", 1)
    connections = [socket.create_connection((host, int(port))) for _ in range(100)]
    time.sleep(1)
    for connection in connections:
        connection.close()
    resource.prlimit(options.pid, resource.RLIMIT_NOFILE, (soft, hard))
    peer = Peer(options)
    try:
        peer.join("later")
    except grpc.RpcError as error:
        raise Failure(f"nobody gets in any more: {error.code().name}: {error.details()}") from None
    print("a client that comes later gets in")


def names(options):
    """Names of several megabytes."""
    long_name = "n" * (6 * MIB)
    peer = Peer(options)
    peer.hello(long_name)
    expect_refusal(peer, "a job name of 6 MiB")
    peer = Peer(options)
    peer.hello("names", name=long_name)
    expect_refusal(peer, "a worker name of 6 MiB")
    peer = Peer(options).join("names")
    peer.register(spec_of(long_name, 4))
    expect_refusal(peer, "a group name of 6 MiB")
    peer.register(types.GroupSpec(
        name="g", tensors=[types.TensorSpec(name=long_name, dtype=types.F32, shape=[4])],
        rule=types.UpdateRule(reduction=types.AVERAGE)))
    expect_refusal(peer, "a tensor name of 6 MiB")


def job_names(options):
    """Creates many jobs with different names. The plan must not keep these names."""
    size = os.path.getsize(f"{options.state}/plan")
    for i in range(1500):
        peer = Peer(options).join(f"{i:04}" + "n" * 200)
        peer.send(leave=control.Leave(request=1))
        peer.wait_for("done")
        peer.channel.close()
    grown = os.path.getsize(f"{options.state}/plan") - size
    # The plan is compacted when it has 1 MiB more than it needs.
    if grown > 1200 << 10:
        raise Failure(f"1500 jobs that are over have left {grown >> 10} KiB in the plan")
    print(f"1500 jobs that are over have left {grown >> 10} KiB in the plan")


def ends(options):
    """Sends EndGroup thousands of times."""
    peer = Peer(options).join("ends")
    peer.registered(spec_of("g", 4))
    size = os.path.getsize(f"{options.state}/plan")
    count = 5000
    for _ in range(count):
        peer.send(end_group=control.EndGroup(request=peer.request(), group=0, last_round=0))
    for _ in range(count):
        try:
            peer.wait_for("done", "refused")
        except grpc.RpcError as error:
            if error.code() in CUTS:
                break
            raise
    grown = os.path.getsize(f"{options.state}/plan") - size
    if grown > 64 << 10:
        raise Failure(f"{count} ends of one group have left {grown >> 10} KiB in the plan")
    print(f"{count} ends of one group have left {grown >> 10} KiB in the plan")


def half_open(options):
    """Opens streams without sending a first message."""
    shared = channel(options.coordinator)
    ended = queue.Queue()

    def watch(call):
        try:
            for _ in call:
                pass
            ended.put(None)
        except grpc.RpcError as error:
            ended.put(error.code())

    streams = []
    for _ in range(100):
        for stub in (control_grpc.ControlStub(shared).Join, data_grpc.DataStub(shared).Exchange):
            silent = queue.Queue()
            streams.append(silent)
            threading.Thread(target=watch, args=(stub(iter(silent.get, None)),),
                             daemon=True).start()
    deadline = time.monotonic() + PATIENCE
    codes = set()
    for i in range(len(streams)):
        try:
            codes.add(ended.get(timeout=max(0.01, deadline - time.monotonic())))
        except queue.Empty:
            raise Failure(f"{len(streams) - i} of {len(streams)} streams without a hello are "
                          f"still open after {PATIENCE} s") from None
    if not codes <= CUTS:
        raise Failure(f"streams without a hello ended with {codes}")
    print(f"streams without a hello ended with {codes}")


class RawCall:
    """A gRPC call made of raw HTTP/2 frames. It announces a message and never sends the last byte.
    """

    def __init__(self, address, path, length):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=PATIENCE)
        self.windows = {0: 65535, 1: 65535}
        self.ended = None
        self.left = memoryview(struct.pack(">BI", 0, length) + b"\0" * (length - 1))
        headers = (b"\x83\x86" + b"\x04" + self._text(path) + b"\x01" + self._text(address)
                   + b"\x0f\x10" + self._text("application/grpc")
                   + b"\x00" + self._text("te") + self._text("trailers"))
        self.socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + self._frame(4, 0, 0, b"")
                            + self._frame(1, 4, 1, headers))

    @staticmethod
    def _text(text):
        encoded = text.encode()
        assert len(encoded) < 127
        return bytes([len(encoded)]) + encoded

    @staticmethod
    def _frame(kind, flags, stream, payload):
        return (struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
                + struct.pack(">I", stream) + payload)

    def _read_exactly(self, count):
        read = b""
        while len(read) < count:
            more = self.socket.recv(count - len(read))
            if not more:
                raise ConnectionError("closed")
            read += more
        return read

    def run(self):
        """Sends as many bytes as the flow control permits, until the server ends the call. Returns
        how the call ended; None if it is still open after PATIENCE."""
        deadline = time.monotonic() + PATIENCE
        try:
            while self.ended is None:
                if time.monotonic() > deadline:
                    return None
                self._send()
                self._receive()
        except socket.timeout:
            return None
        except OSError as error:
            return f"connection: {error}"
        return self.ended

    def _send(self):
        while self.left:
            size = min(16384, self.windows[0], self.windows[1], len(self.left))
            if size <= 0:
                return
            self.socket.sendall(self._frame(0, 0, 1, bytes(self.left[:size])))
            self.left = self.left[size:]
            self.windows[0] -= size
            self.windows[1] -= size

    def _receive(self):
        header = self._read_exactly(9)
        length, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
        stream = int.from_bytes(header[5:], "big") & 0x7fffffff
        payload = self._read_exactly(length)
        if kind == 8:
            self.windows[stream] += int.from_bytes(payload, "big") & 0x7fffffff
        elif kind == 4 and not flags & 1:
            for at in range(0, length, 6):
                name, value = struct.unpack(">HI", payload[at:at + 6])
                if name == 4:
                    self.windows[1] += value - 65535
            self.socket.sendall(self._frame(4, 1, 0, b""))
        elif kind == 6 and not flags & 1:
            self.socket.sendall(self._frame(6, 1, 0, payload))
        elif kind == 1 and flags & 1:
            self.ended = "trailers"
        elif kind == 3:
            self.ended = "a reset"
        elif kind == 7:
            self.ended = "a goaway"


def partial(options):
    """Announces messages of 19 MiB, and sends all but the last byte. The server holds them until the
    deadline for a hello."""
    endings = queue.Queue()
    calls = 5
    for _ in range(calls):
        call = RawCall(options.coordinator, "/syncgrads.v1.Data/Exchange", 19 * MIB)
        threading.Thread(target=lambda call=call: endings.put(call.run()), daemon=True).start()
    seen = [endings.get(timeout=3 * PATIENCE) for _ in range(calls)]
    if None in seen:
        raise Failure(f"{seen.count(None)} of {calls} calls with an unfinished message of 19 MiB are "
                      f"still open after {PATIENCE} s")
    print(f"calls with an unfinished message ended with {set(seen)}")


def gzip(options):
    """Sends a message that is small when compressed and very large when decompressed."""
    stub = control_grpc.ControlStub(channel(options.coordinator))
    try:
        # The timeout is long, because this process has to compress the message first.
        stub.Probe(control.ProbeRequest(padding=b"\0" * (256 * MIB)), timeout=6 * PATIENCE,
                   compression=grpc.Compression.Gzip)
    except grpc.RpcError as error:
        if error.code() in {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED}:
            return print(f"256 MiB of zeros: {error.code().name}: {error.details()[:200]}")
        raise Failure(f"256 MiB of zeros: {error.code().name}: {error.details()}") from None
    raise Failure("256 MiB of zeros were taken")


def future_leave(options):
    """A member leaves and claims future rounds. The other member must be able to continue."""
    leaver = Peer(options)
    leaver.hello("leaves", rank=0, world_size=2)
    other = Peer(options).join("leaves", rank=1, world_size=2)
    welcome = leaver.wait_for("welcome")
    leaver.generation, leaver.member = welcome.generation, welcome.welcome.member
    leaver.addresses = welcome.welcome.servers
    spec = spec_of("g", 4)
    leaver.registered(spec)
    other.registered(spec)
    payload = struct.pack("<4f", 1, 2, 3, 4)
    pushes, updates = other.exchange()
    first, _ = leaver.exchange()
    first.put(leaver.push(1, payload))
    pushes.put(other.push(1, payload))
    next(iter(updates))
    leaver.send(leave=control.Leave(request=1, last_rounds=[
        types.GroupRound(group=0, round=1 << 40)]))
    answer = leaver.wait_for("done", "refused")
    if answer.WhichOneof("kind") == "refused":
        return print(f"the claim was refused: {answer.refused.error}")
    pushes.put(other.push(2, payload))
    got = queue.Queue()
    threading.Thread(target=lambda: got.put(next(iter(updates))), daemon=True).start()
    try:
        update = got.get(timeout=PATIENCE)
    except queue.Empty:
        raise Failure(f"the other member has no result of its round {PATIENCE} s after "
                      "the leave") from None
    print(f"the other member goes on: round {update.round}, counts {list(update.counts)}")


def churn(options):
    """More than 16 members join and leave a job of bounded staleness."""
    sgd = types.UpdateRule(optimizer=types.Optimizer(sgd=types.Sgd()))
    spec = types.GroupSpec(
        name="model", tensors=[types.TensorSpec(name="t", dtype=types.F32, shape=[4])], rule=sgd,
        policy=types.Policy(staleness=types.Staleness(bound=1000)))
    payload = struct.pack("<4f", 1, 2, 3, 4)
    terms = {"max_workers": 64, "min_workers": 1}

    def member(name):
        peer = Peer(options)
        peer.join("churn", name=name, **({**terms, "rank": None} if name != "stays" else terms))
        epoch = peer.wait_for("epoch").epoch
        peer.registered(spec)
        peer.send(ready=control.Ready(request=peer.request(), group=0))
        return peer, epoch

    stays, epoch = member("stays")
    pushes, updates = stays.exchange()
    answers = iter(updates)
    pushes.put(stays.push(0, payload, epoch.number))
    check(next(answers), "the first parameters")
    round_ = 0
    for i in range(20):
        comes, epoch = member(f"comes-{i}")
        first = max([entry.round for entry in epoch.handover.rounds] or [1])
        its_pushes, its_updates = comes.exchange()
        its_pushes.put(comes.push(first, payload, epoch.number))
        check(next(iter(its_updates)), f"a push of member {i + 2}")
        round_ += 1
        pushes.put(stays.push(round_, payload, epoch.number))
        check(next(answers), f"a push of the first member beside member {i + 2}")
        comes.send(leave=control.Leave(request=comes.request(), last_rounds=[
            types.GroupRound(group=0, round=first)]))
        comes.wait_for("done")
        comes.channel.close()
    print("21 members have come, and 20 have gone")


def check(update, what):
    if update.HasField("error"):
        raise Failure(f"{what}: {update.error}")


def unread(options):
    """Does not read results of 4 MiB, while the state directory has 64 MiB."""
    elements = MIB
    peer = Peer(options).join("unread")
    peer.registered(spec_of("g", elements, chunk_bytes=4 * MIB))
    pushes, updates = peer.exchange()
    # The same pushes are sent on a second stream. Its answers show when the next round is open.
    read_pushes, read_updates = peer.exchange()
    answers = iter(read_updates)
    payload = b"\0" * (4 * elements)
    for round_ in range(1, 31):
        pushes.put(peer.push(round_, payload))
        read_pushes.put(peer.push(round_, payload))
        try:
            update = next(answers)
        except grpc.RpcError as error:
            print(f"round {round_}: {error.code().name}: {error.details()[:200]}")
            break
        if update.HasField("error"):
            print(f"round {round_}: {update.error.message[:200]}")
            break
    other = Peer(options).join("beside")
    other.register(spec_of("g", MIB))
    signal = other.wait_for("registered", "refused")
    if signal.WhichOneof("kind") == "refused":
        raise Failure(f"another job has no room left: {signal.refused.error}")
    print("another job has room")
    ended = queue.Queue()

    def drain():
        try:
            for update in updates:
                # FAILED_PRECONDITION is permitted here: the round was answered on the other stream
                # and may no longer be kept.
                if update.HasField("error") and update.error.code != 9:
                    return ended.put(update.error.code)
        except grpc.RpcError as error:
            return ended.put(error.code().value[0])
        return ended.put(0)

    threading.Thread(target=drain, daemon=True).start()
    try:
        code = ended.get(timeout=PATIENCE)
    except queue.Empty:
        return print("every result could still be read")
    if code != 8:
        raise Failure(f"the slow reader's stream ended with code {code}")
    return print("the slow reader's stream ended with RESOURCE_EXHAUSTED")


SCENARIOS = {scenario.__name__: scenario for scenario in (
    chunk_bomb, repeats, descriptors, names, job_names, ends, half_open, partial, gzip,
    future_leave, churn, unread)}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=SCENARIOS)
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--pid", type=int, required=True, help="of the server")
    parser.add_argument("--state", required=True, help="the server's state directory")
    parser.add_argument("--stubs", required=True, help="folder of proto/*_pb2*.py")
    options = parser.parse_args()
    sys.path.insert(0, options.stubs)
    # pylint: disable=import-outside-toplevel
    from proto import control_pb2, control_pb2_grpc, data_pb2, data_pb2_grpc, types_pb2
    globals().update(control=control_pb2, control_grpc=control_pb2_grpc, data=data_pb2,
                     data_grpc=data_pb2_grpc, types=types_pb2)
    try:
        SCENARIOS[options.scenario](options)
        code = 0
    except Failure as failure:
        print(f"{options.scenario}: {failure}")
        code = 1
    except grpc.RpcError as error:
        print(f"{options.scenario}: {error.code().name}: {error.details()}")
        code = 1
    sys.stdout.flush()
    # A normal exit would wait for open streams.
    os._exit(code)


if __name__ == "__main__":
    main()
