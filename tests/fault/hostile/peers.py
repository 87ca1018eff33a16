"""What the misbehaving clients are made of: members of jobs, data streams, and raw HTTP/2."""

import os
import queue
import random
import resource
import socket
import struct
import threading
import time

import grpc
from proto import control_pb2 as control
from proto import control_pb2_grpc as control_grpc
from proto import data_pb2 as data
from proto import data_pb2_grpc as data_grpc
from proto import types_pb2 as types

PATIENCE = 180  # the timeout of every wait, in seconds
MIB = 1 << 20
Code = grpc.StatusCode
CODES = {code.value[0]: code for code in Code}


class Failure(Exception):
    """The server did not react correctly."""


class Options:
    """The server that is attacked. Set once, by misbehaviour.py."""

    coordinator = ""
    pid = 0  # of the server
    state = ""  # the server's state directory


# The connections of the scenario or row in progress; see close_all.
_open = []


def channel(address=None, options=()):
    opened = grpc.insecure_channel(address or Options.coordinator, options=[
        ("grpc.use_local_subchannel_pool", 1), ("grpc.max_receive_message_length", -1), *options])
    _open.append(opened)
    return opened


def connect():
    """Returns a TCP connection to the server."""
    host, port = Options.coordinator.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
    _open.append(connection)
    return connection


def close_all():
    while _open:
        _open.pop().close()


def check_refusal(what, code, message, expected, *texts):
    """Expects one of the codes, and that the message contains the texts. Returns what to print."""
    expected = expected if isinstance(expected, (tuple, set)) else (expected,)
    if code not in expected:
        raise Failure(f"{what}: {code.name}: {message[:300]}; expected "
                      f"{' or '.join(sorted(code.name for code in expected))}")
    for text in texts:
        if text not in message:
            raise Failure(f"{what}: {code.name}: {message[:300]}; expected \"{text}\" in it")
    return f"{code.name}: {message[:160]}"


class Peer:
    """A member of a job, or a client that tries to become one."""

    def __init__(self, reads=True, over=None):
        self.incarnation = random.getrandbits(63) + 1
        self.secret = ""
        self.channel = over or channel()
        self.outgoing = queue.Queue()
        self.answers = control_grpc.ControlStub(self.channel).Join(iter(self.outgoing.get, None))
        self.signals = queue.Queue()
        self.requests = 0
        if reads:
            threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for signal in self.answers:
                self.signals.put(signal)
            self.signals.put(None)
        except grpc.RpcError as error:
            self.signals.put(error)

    def next(self, patience=PATIENCE):
        """Returns the next signal. Raises RpcError if the stream has ended."""
        try:
            signal = self.signals.get(timeout=max(0.01, patience))
        except queue.Empty:
            raise Failure(f"no signal within {patience:.0f} s") from None
        if isinstance(signal, grpc.RpcError):
            raise signal
        if signal is None:
            raise Failure("the stream ended with OK")
        return signal

    def hello_of(self, job, **more):
        fields = {"protocol_version": 2, "job": job, "incarnation": self.incarnation, "rank": 0,
                  "world_size": 1, "host": "stranger", "member_secret": self.secret}
        return control.WorkerSignal(hello=control.Hello(**{**fields, **more}))

    def hello(self, job, **more):
        self.job = job
        self.outgoing.put(self.hello_of(job, **more))

    def welcomed(self, beats=True):
        welcome = self.wait_for("welcome")
        self.generation, self.member = welcome.generation, welcome.welcome.member
        self.name, self.addresses = welcome.welcome.name, welcome.welcome.servers
        if beats:
            interval = welcome.welcome.heartbeat_interval_ms / 1000
            threading.Thread(target=self._beat, args=(interval,), daemon=True).start()
        return self

    def join(self, job, **more):
        self.hello(job, **more)
        return self.welcomed()

    def _beat(self, interval):
        while True:
            time.sleep(interval)
            self.outgoing.put(control.WorkerSignal(heartbeat=control.Heartbeat()))

    def wait_for(self, *kinds):
        deadline = time.monotonic() + PATIENCE
        while True:
            signal = self.next(deadline - time.monotonic())
            if signal.WhichOneof("kind") in kinds:
                return signal

    def expect_refusal(self, what, codes, *texts):
        """Expects that the next answer, or the end of the stream, is this refusal."""
        try:
            signal = self.wait_for("registered", "done", "refused", "expelled", "welcome")
        except grpc.RpcError as error:
            return check_refusal(what, error.code(), error.details(), codes, *texts)
        kind = signal.WhichOneof("kind")
        error = {"refused": signal.refused.error, "expelled": signal.expelled}.get(kind)
        if error is None:
            raise Failure(f"{what} was accepted ({kind})")
        return check_refusal(what, CODES[error.code], error.message, codes, *texts)

    def expect_end(self, what, codes, *texts):
        """Expects that the stream ends with one of the codes, after whatever signals."""
        deadline = time.monotonic() + PATIENCE
        try:
            while True:
                self.next(deadline - time.monotonic())
        except grpc.RpcError as error:
            return check_refusal(what, error.code(), error.details(), codes, *texts)

    def send(self, **kind):
        self.outgoing.put(control.WorkerSignal(**kind))

    def request(self):
        self.requests += 1
        return self.requests

    def register(self, spec, **more):
        self.send(register_group=control.RegisterGroup(request=self.request(), spec=spec, **more))

    def registered(self, spec):
        self.register(spec)
        answer = self.wait_for("registered", "refused")
        if answer.WhichOneof("kind") == "refused":
            raise Failure(f"group {spec.name} was refused: {answer.refused.error}")
        return answer.registered.plan

    def leave(self, *last_rounds):
        self.send(leave=control.Leave(request=self.request(), last_rounds=[
            types.GroupRound(group=0, round=round_) for round_ in last_rounds]))
        return self.wait_for("done", "refused")

    def data_hello(self, **more):
        fields = {"protocol_version": 2, "job": self.job, "member": self.member,
                  "incarnation": self.incarnation, "member_secret": self.secret}
        return data.PushChunk(generation=self.generation,
                              hello=data.DataHello(**{**fields, **more}))

    def push(self, round_, payload=b"", **more):
        fields = {"generation": self.generation, "group": 0, "chunk": 0, "round": round_,
                  "member": self.member, "incarnation": self.incarnation, "epoch": 1, "weight": 1,
                  "payload": payload}
        return data.PushChunk(**{**fields, **more})


class Stream:
    """A data stream of a member."""

    def __init__(self, peer, hello=None, reads=True, **more):
        self.peer = peer
        self.outgoing = queue.Queue()
        self.answers = queue.Queue()
        stub = data_grpc.DataStub(channel(peer.addresses[0]))
        self._updates = stub.Exchange(iter(self.outgoing.get, None), wait_for_ready=True)
        if hello is not False:
            self.outgoing.put(peer.data_hello(**more))
        if reads:
            self.read()

    def read(self):
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        try:
            for update in self._updates:
                self.answers.put(update)
            self.answers.put(None)
        except grpc.RpcError as error:
            self.answers.put(error)

    def push(self, *arguments, **fields):
        self.outgoing.put(self.peer.push(*arguments, **fields))

    def answer(self, what="a push"):
        """Returns the next update. Raises RpcError if the stream has ended."""
        try:
            update = self.answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise Failure(f"{what} is not answered within {PATIENCE} s") from None
        if isinstance(update, grpc.RpcError):
            raise update
        if update is None:
            raise Failure(f"{what}: the stream ended with OK")
        return update

    def result(self, what="a push"):
        update = self.answer(what)
        if update.HasField("error"):
            raise Failure(f"{what}: {update.error}")
        return update

    def expect_error(self, what, codes, *texts):
        """Expects that the next answer is an error. The stream continues."""
        update = self.answer(what)
        if not update.HasField("error"):
            raise Failure(f"{what} was accepted")
        return check_refusal(what, CODES[update.error.code], update.error.message, codes, *texts)

    def expect_end(self, what, codes, *texts):
        """Expects that the stream ends with one of the codes."""
        try:
            update = self.answer(what)
        except grpc.RpcError as error:
            return check_refusal(what, error.code(), error.details(), codes, *texts)
        raise Failure(f"{what} was answered: {str(update)[:200]}")


def pair(job, spec, **terms):
    """Returns the two members of a job, which have registered the group."""
    first, second = Peer(), Peer()
    first.hello(job, **{"rank": 0, "world_size": 2, **terms})
    second.hello(job, **{"rank": 1, "world_size": 2, **terms})
    for peer in (first.welcomed(), second.welcomed()):
        peer.wait_for("epoch")
        peer.registered(spec)
    return first, second


def spec_of(name, elements, dtype=types.F32, **more):
    fields = {"rule": types.UpdateRule(reduction=types.AVERAGE)}
    return types.GroupSpec(name=name, **{**fields, **more}, tensors=[
        types.TensorSpec(name="t", dtype=dtype, shape=[elements])])


def floats(*values):
    return struct.pack(f"<{len(values)}f", *values)


def resident():
    with open(f"/proc/{Options.pid}/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def forget_peak():
    """Resets the peak of the server's memory."""
    with open(f"/proc/{Options.pid}/clear_refs", "w") as clear_refs:
        clear_refs.write("5")


def peak():
    with open(f"/proc/{Options.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM:")) << 10


def processor_seconds():
    """Returns the processor time that the server has used."""
    with open(f"/proc/{Options.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class RawConnection:
    """An HTTP/2 connection made of raw frames."""

    PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9

    def __init__(self):
        self.socket = connect()
        self.acknowledges = True

    @staticmethod
    def frame(kind, flags=0, stream=0, payload=b""):
        return (struct.pack(">I", len(payload))[1:] + bytes([kind, flags])
                + struct.pack(">I", stream) + payload)

    @classmethod
    def headers(cls, path, stream=1, more=b""):
        """The headers of a call of gRPC. Those of stream 1 add the fields to the table that the
        peers share (RFC 7541)."""
        def text(value):
            assert len(value) < 127
            return bytes([len(value)]) + value.encode()

        return cls.frame(cls.HEADERS, 4, stream, (
            b"\x83\x86" + b"\x44" + text(path) + b"\x41" + text(Options.coordinator)
            + b"\x5f" + text("application/grpc") + b"\x40" + text("te") + text("trailers") + more))

    @classmethod
    def headers_again(cls, stream):
        """The headers of the call of the stream before, in as few bytes as possible."""
        return cls.frame(cls.HEADERS, 4, stream, b"\x83\x86\xc1\xc0\xbf\xbe")

    def send(self, *frames):
        self.socket.sendall(b"".join(frames))

    def read(self):
        """Returns the next frame as (kind, flags, stream, payload); None at the end. Settings and
        pings are acknowledged, unless `acknowledges` is False."""
        try:
            header = self._read_exactly(9)
            length, kind, flags = int.from_bytes(header[:3], "big"), header[3], header[4]
            stream = int.from_bytes(header[5:], "big") & 0x7fffffff
            payload = self._read_exactly(length)
            if kind in (self.SETTINGS, self.PING) and not flags & 1 and self.acknowledges:
                self.send(self.frame(kind, 1, 0, payload if kind == self.PING else b""))
        except socket.timeout:
            raise Failure(f"no frame within {PATIENCE} s") from None
        except OSError:
            return None
        return kind, flags, stream, payload

    def _read_exactly(self, count):
        read = b""
        while len(read) < count:
            more = self.socket.recv(count - len(read))
            if not more:
                raise ConnectionError("closed")
            read += more
        return read


class Unfinished(RawConnection):
    """A call that announces a message and never sends the last byte."""

    def __init__(self, path, length):
        super().__init__()
        self.windows = {0: 65535, 1: 65535}
        self.left = memoryview(struct.pack(">BI", 0, length) + b"\0" * (length - 1))
        self.send(self.PREFACE, self.frame(self.SETTINGS), self.headers(path))

    def run(self):
        """Sends as many bytes as the flow control permits, until the server ends the call. Returns
        how the call ended."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            self._send()
            frame = self.read()
            if frame is None:
                return "the end of the connection"
            kind, flags, stream, payload = frame
            if kind == self.WINDOW:
                self.windows[stream] += int.from_bytes(payload, "big") & 0x7fffffff
            elif kind == self.SETTINGS and not flags & 1:
                for at in range(0, len(payload), 6):
                    name, value = struct.unpack(">HI", payload[at:at + 6])
                    if name == 4:
                        self.windows[1] += value - 65535
            elif kind == self.HEADERS and flags & 1:
                return "trailers"
            elif kind == self.RESET:
                return "a reset"
            elif kind == self.GOAWAY:
                return "a goaway"
        raise Failure(f"a call with an unfinished message is still open after {PATIENCE} s")

    def _send(self):
        while self.left:
            size = min(16384, self.windows[0], self.windows[1], len(self.left))
            if size <= 0:
                return
            try:
                self.send(self.frame(self.DATA, 0, 1, bytes(self.left[:size])))
            except OSError:
                return  # read() returns how the call ended
            self.left = self.left[size:]
            self.windows[0] -= size
            self.windows[1] -= size


ROWS = []


def row(name):
    """A misbehaviour that is tried beside others, in the order in which they are defined. The
    function returns the server's reaction, for people to read."""
    def add(function):
        ROWS.append((name, function))
        return function

    return add
