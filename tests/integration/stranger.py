"""A worker in another language, written from the .proto files alone.

It joins a job as its third worker, beside two workers of tests/integration/stranger_peer.cc. It
takes part in opt-out all-reduces and in rounds of averages. The exit code is 0 if every result was
correct.

It needs grpcio and the stubs that protoc generates from proto/*.proto, and nothing else of this
project.
"""

import argparse
import array
import queue
import random
import socket
import sys
import threading
import time

import grpc

RANK = 2
WORLD_SIZE = 3
TIMEOUT = 60  # the timeout of every wait, in seconds
RETRY = 0.05  # the delay before a broken stream is opened again, in seconds


class Worker:
    """The membership of one worker in a job, and its data streams."""

    def __init__(self, coordinator, job):
        self.incarnation = random.getrandbits(64) | 1
        self.job = job
        self._requests = 0
        self._signals = queue.Queue()
        self._outgoing = queue.Queue()
        channel = grpc.insecure_channel(coordinator)
        grpc.channel_ready_future(channel).result(TIMEOUT)
        answers = control_grpc.ControlStub(channel).Join(iter(self._outgoing.get, None))
        threading.Thread(target=self._read_signals, args=(answers,), daemon=True).start()
        self._join(coordinator)

    def _join(self, coordinator):
        self._outgoing.put(control.WorkerSignal(hello=control.Hello(
            protocol_version=2, job=self.job, name="stranger", incarnation=self.incarnation,
            rank=RANK, world_size=WORLD_SIZE, host=socket.gethostname())))
        signal = self._wait_for("welcome")
        self.generation = signal.generation
        self.member = signal.welcome.member
        threading.Thread(target=self._beat, daemon=True,
                         args=(signal.welcome.heartbeat_interval_ms / 1000,)).start()
        # The coordinator's own address may be empty: then it is the address of the Join stream.
        self.streams = [Stream(address or coordinator, self)
                        for address in signal.welcome.servers]
        self.epoch = self._wait_for("epoch").epoch
        names = [member.name for member in self.epoch.members]
        expect("the names in rank order", names[RANK], "stranger")
        expect("how many there are", len(names), WORLD_SIZE)

    def _beat(self, interval):
        while True:
            threading.Event().wait(interval)
            self._outgoing.put(control.WorkerSignal(heartbeat=control.Heartbeat()))

    def _read_signals(self, answers):
        try:
            for signal in answers:
                self._signals.put(signal)
        except grpc.RpcError as error:
            self._signals.put(error)

    def _wait_for(self, kind):
        while True:
            signal = self._signals.get(timeout=TIMEOUT)
            if isinstance(signal, grpc.RpcError):
                raise signal
            if signal.WhichOneof("kind") == kind:
                return signal
            if signal.WhichOneof("kind") in ("refused", "expelled"):
                raise RuntimeError(f"waited for {kind} and got: {signal}")

    def _request(self):
        self._requests += 1
        return self._requests

    def register(self, spec):
        self._outgoing.put(control.WorkerSignal(register_group=control.RegisterGroup(
            request=self._request(), spec=spec)))
        return Group(self, self._wait_for("registered").registered.plan)

    def end(self, group):
        self._outgoing.put(control.WorkerSignal(end_group=control.EndGroup(
            request=self._request(), group=group.number, last_round=group.round)))
        self._wait_for("done")

    def leave(self, groups):
        self._outgoing.put(control.WorkerSignal(leave=control.Leave(
            request=self._request(),
            last_rounds=[types.GroupRound(group=group.number, round=group.round)
                         for group in groups])))
        self._wait_for("done")
        self._outgoing.put(None)


class Stream:
    """The data stream to one server."""

    def __init__(self, address, worker):
        self._stub = data_grpc.DataStub(grpc.insecure_channel(address))
        self._hello = data.PushChunk(generation=worker.generation, hello=data.DataHello(
            protocol_version=2, job=worker.job, member=worker.member,
            incarnation=worker.incarnation))
        self._answers = queue.Queue()
        self._unanswered = {}  # the key is (group, chunk), the value is the push
        self._open()

    def _open(self):
        self._outgoing = queue.Queue()
        updates = self._stub.Exchange(iter(self._outgoing.get, None), wait_for_ready=True)
        self._outgoing.put(self._hello)
        for push in self._unanswered.values():
            self._outgoing.put(push)
        threading.Thread(target=self._read, args=(updates,), daemon=True).start()

    def _read(self, updates):
        try:
            for update in updates:
                self._answers.put(update)
        except grpc.RpcError as error:
            self._answers.put(error)

    def push(self, push):
        self._unanswered[push.group, push.chunk] = push
        self._outgoing.put(push)

    def next_answer(self):
        deadline = time.monotonic() + TIMEOUT
        while True:
            answer = self._answers.get(timeout=deadline - time.monotonic())
            if not isinstance(answer, grpc.RpcError):
                break
            # UNAVAILABLE is retried. One reason for it is that the server has not received this
            # worker's membership yet.
            if answer.code() != grpc.StatusCode.UNAVAILABLE:
                raise answer
            self._outgoing.put(None)
            time.sleep(RETRY)
            self._open()
        if answer.HasField("error"):
            raise RuntimeError(f"a push was refused: {answer.error}")
        del self._unanswered[answer.group, answer.chunk]
        return answer


class Group:
    """A registered group. All of its tensors have the same dtype."""

    def __init__(self, worker, plan):
        self.worker = worker
        self.number = plan.group
        self.chunks = plan.chunks
        self.round = 0
        self.typecode = {types.F64: "d", types.F32: "f"}[plan.spec.tensors[0].dtype]
        self.tensors = {}  # the key is the name, the value is (first element, last element + 1)
        end = 0
        for tensor in plan.spec.tensors:
            begin = end
            end = begin + size_of(tensor)
            self.tensors[tensor.name] = (begin, end)

    def spans(self, chunk):
        """Yields the overlap of the chunk with each tensor: (name, begin, end)."""
        first, last = chunk.first_element, chunk.first_element + chunk.elements
        for name, (begin, end) in self.tensors.items():
            if begin < last and first < end:
                yield name, max(begin, first), min(end, last)

    def next_round(self, contributions, weight=1.0):
        """Contributes the lists of numbers in `contributions`, and skips the other tensors. Returns
        {name: [numbers]} and {name: number of contributors}."""
        self.round += 1
        for number, chunk in enumerate(self.chunks):
            self._stream_of(number).push(self._push(number, chunk, contributions, weight))
        values = {name: [None] * (end - begin) for name, (begin, end) in self.tensors.items()}
        counts = {}
        for server, stream in enumerate(self.worker.streams):
            for _ in range(sum(chunk.server == server for chunk in self.chunks)):
                self._take(stream.next_answer(), values, counts)
        return values, counts

    def _stream_of(self, number):
        return self.worker.streams[self.chunks[number].server]

    def _push(self, number, chunk, contributions, weight):
        payload, absent = array.array(self.typecode), []
        spans = list(self.spans(chunk))
        for position, (name, begin, end) in enumerate(spans):
            if name in contributions:
                first = self.tensors[name][0]
                payload.extend(contributions[name][begin - first:end - first])
            else:
                absent.append(position)
        push = data.PushChunk(
            generation=self.worker.generation, group=self.number, chunk=number, round=self.round,
            member=self.worker.member, incarnation=self.worker.incarnation,
            epoch=self.worker.epoch.number, weight=weight)
        if len(absent) == len(spans):
            push.skip = True
        else:
            push.absent_spans.extend(absent)
            push.payload = payload.tobytes()
        return push

    def _take(self, update, values, counts):
        expect("the round that is answered", update.round, self.round)
        result = array.array(self.typecode)
        result.frombytes(update.payload)
        chunk = self.chunks[update.chunk]
        for (name, begin, end), count in zip(self.spans(chunk), update.counts):
            first = self.tensors[name][0]
            if count > 0:
                values[name][begin - first:end - first] = \
                    result[begin - chunk.first_element:end - chunk.first_element]
            expect(f"contributors to {name}", counts.setdefault(name, count), count)


def size_of(tensor):
    size = 1
    for axis in tensor.shape:
        size *= axis
    return size


def expect(what, value, expected):
    if value != expected:
        raise AssertionError(f"{what}: {value}, not {expected}")


def opt_out_all_reduces(worker):
    """Every combination of contributors, in the same order as in the C++ workers."""
    # The name that the C++ client gives to the group and to its tensor.
    name = "all_reduce/sum/opt_out"
    group = worker.register(types.GroupSpec(
        name=name, tensors=[types.TensorSpec(name=name, dtype=types.F64, shape=[3])],
        rule=types.UpdateRule(reduction=types.SUM), policy=types.Policy(sync=types.Sync()),
        non_finite=types.ALLOW))  # as in all collectives
    for pattern in range(2 ** WORLD_SIZE):
        taking_part = [rank for rank in range(WORLD_SIZE) if pattern >> rank & 1]
        mine = {name: [(i + 1) * 10.0 ** RANK for i in range(3)]}
        values, counts = group.next_round(mine if RANK in taking_part else {})
        expect(f"contributors to pattern {pattern}", counts[name], len(taking_part))
        if taking_part:
            expect(f"the sum of pattern {pattern}", values[name],
                   [(i + 1) * sum(10.0 ** rank for rank in taking_part) for i in range(3)])
    return group


def gradient(rank, step, begin, end):
    return [float((rank + 1) * step + i) for i in range(begin, end)]


def average_of(ranks, step, begin, end):
    """Weighted: the C++ workers have weight 1, this worker has weight 2."""
    weights = {0: 1, 1: 1, 2: 2}
    total = sum(weights[rank] for rank in ranks)
    columns = zip(*[[weights[rank] * g for g in gradient(rank, step, begin, end)]
                    for rank in ranks])
    return [sum(column) / total for column in columns]


def average_rounds(worker):
    group = worker.register(types.GroupSpec(
        name="model",
        tensors=[types.TensorSpec(name="kernel", dtype=types.F32, shape=[2, 3]),
                 types.TensorSpec(name="bias", dtype=types.F32, shape=[2])],
        rule=types.UpdateRule(reduction=types.AVERAGE), policy=types.Policy(sync=types.Sync()),
        chunk_bytes=16))
    expect("chunks", len(group.chunks), 2)
    # The tensors that this worker contributes to in each step: both, one, none, both.
    for step, mine in enumerate([("kernel", "bias"), ("bias",), (), ("kernel", "bias")], start=1):
        values, counts = group.next_round(
            {name: gradient(RANK, step, *group.tensors[name]) for name in mine}, weight=2.0)
        for name, place in group.tensors.items():
            ranks = (0, 1, 2) if name in mine else (0, 1)
            expect(f"contributors to {name} in step {step}", counts[name], len(ranks))
            expect(f"{name} after step {step}", values[name], average_of(ranks, step, *place))
    worker.end(group)  # the other workers make a fifth step
    return group


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--coordinator", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--stubs", required=True, help="folder of proto/*_pb2*.py")
    args = parser.parse_args()
    sys.path.insert(0, args.stubs)
    # pylint: disable=import-outside-toplevel
    from proto import control_pb2, control_pb2_grpc, data_pb2, data_pb2_grpc, types_pb2
    globals().update(control=control_pb2, control_grpc=control_pb2_grpc, data=data_pb2,
                     data_grpc=data_pb2_grpc, types=types_pb2)

    worker = Worker(args.coordinator, args.job)
    groups = [opt_out_all_reduces(worker), average_rounds(worker)]
    worker.leave(groups)
    print("the stranger has seen what it had to see")


if __name__ == "__main__":
    main()
