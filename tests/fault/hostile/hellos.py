"""First messages that are wrong, and members that do not behave as their hello says."""

import time

import grpc
from hostile.peers import (MIB, PATIENCE, ROWS, Code, Failure, Peer, Stream, channel,
                           check_refusal, close_all, control, floats, row, spec_of)
from proto import admin_pb2 as admin
from proto import admin_pb2_grpc as admin_grpc

# The job that runs beside the rows (honest_main.cc).
HONEST = {"job": "honest", "token": "honest", "world_size": 2}


def refused_hello(what, codes, *texts, **hello):
    """A row: a hello that is refused."""
    def attempt():
        peer = Peer()
        peer.hello(**{"job": "refused", **hello})
        return peer.expect_refusal(what, codes, *texts)

    ROWS.append((what, attempt))


refused_hello("protocol version 99", Code.FAILED_PRECONDITION, "version 99", "uses 2",
              protocol_version=99)
refused_hello("an empty job name", Code.INVALID_ARGUMENT, "name is empty", job="")
refused_hello("incarnation 0", Code.INVALID_ARGUMENT, "incarnation is 0", incarnation=0)
refused_hello("world size 0", Code.INVALID_ARGUMENT, "world_size is 0", world_size=0)
refused_hello("rank 7 of 2", Code.INVALID_ARGUMENT, "rank", "7", "2", rank=7, world_size=2)
refused_hello("min_workers above world_size", Code.INVALID_ARGUMENT, "2", "3", world_size=2,
              min_workers=3, max_workers=4)
refused_hello("a worker name with an escape character", Code.INVALID_ARGUMENT, name="a\x1b[31m")


def refused_signal(name, signal):
    def attempt():
        peer = Peer()
        peer.outgoing.put(signal)
        return peer.expect_refusal(name, Code.FAILED_PRECONDITION, "must be a hello")

    ROWS.append((name, attempt))


refused_signal("a heartbeat in place of the hello",
               control.WorkerSignal(heartbeat=control.Heartbeat()))
refused_signal("an empty signal in place of the hello", control.WorkerSignal())


def end_of_raw_join(what, message, *texts):
    call = channel().stream_stream("/syncgrads.v1.Control/Join")(iter([message]), timeout=PATIENCE)
    try:
        for _ in call:
            pass
    except grpc.RpcError as error:
        return check_refusal(what, error.code(), error.details(), Code.INVALID_ARGUMENT, *texts)
    raise Failure(f"{what}: the stream ended with OK")


@row("bytes on a Join stream that are no message")
def _():
    return end_of_raw_join("garbage", b"\xff\xfe\xfd garbage \x00\x01" * 9)


@row("a worker name that is not UTF-8")
def _():
    hello = Peer(reads=False).hello_of("refused").hello.SerializeToString() + b"\x22\x02\xff\xfe"
    assert len(hello) < 128
    return end_of_raw_join("a name that is not UTF-8", bytes([0x0a, len(hello)]) + hello)


refused_hello("the honest job with another token", Code.PERMISSION_DENIED, "token", "honest",
              **{**HONEST, "token": "guess"})
refused_hello("the honest job without a token", Code.PERMISSION_DENIED, "token", "honest",
              **{**HONEST, "token": ""})
refused_hello("the honest job with another token and another world size", Code.PERMISSION_DENIED,
              "token", "honest", **{**HONEST, "token": "guess", "world_size": 3})
refused_hello("the honest job with another token and an invented generation",
              Code.PERMISSION_DENIED, "token", **{**HONEST, "token": "guess", "generation": 5})


@row("the honest job with its token and the name of a live worker")
def _():
    status = admin_grpc.AdminStub(channel()).GetStatus(admin.GetStatusRequest(), timeout=PATIENCE)
    name = next(job.members[0].name for job in status.jobs if job.job == "honest")
    peer = Peer()
    peer.hello(**HONEST, name=name, rank=None)
    return peer.expect_refusal("a name that is taken", Code.ALREADY_EXISTS, name, "live worker")


refused_hello("the honest job with its token and the rank of a live worker", Code.ALREADY_EXISTS,
              "rank 1", "live worker", **HONEST, rank=1)
refused_hello("the honest job with its token, as a third worker", Code.RESOURCE_EXHAUSTED,
              "2 members", **HONEST, name="third", rank=None)
refused_hello("the honest job with its token and other terms", Code.FAILED_PRECONDITION,
              "max_workers 0", "max_workers 9", **HONEST, max_workers=9)
refused_hello("a generation of the past", Code.DATA_LOSS, "generation 5", job="past", generation=5)
refused_hello("a generation of the future", Code.DATA_LOSS, "generation 1152921504606846976",
              job="future", generation=1 << 60)


@row("two hellos on a Join stream")
def _():
    peer = Peer().join("twice")
    peer.hello("twice")
    return peer.expect_end("a second hello", Code.FAILED_PRECONDITION, "second hello")


@row("joins, and then sends no heartbeat")
def _():
    spec = spec_of("g", 4)
    silent, other = Peer(), Peer()
    silent.hello("silent", rank=0, world_size=2)
    other.hello("silent", rank=1, world_size=2)
    silent.welcomed(beats=False)
    other.welcomed()
    for peer in silent, other:
        peer.wait_for("epoch")
        peer.registered(spec)
    stream = Stream(other)
    stream.push(1, floats(1, 2, 3, 4))
    reaction = silent.expect_end("no heartbeat", Code.FAILED_PRECONDITION, "dropped", "lease")
    stream.result("the other's round")
    return reaction


@row("joins and breaks the stream, 30 times")
def _():
    peer = Peer().join("again")
    for _ in range(30):
        again = Peer()
        again.incarnation = peer.incarnation
        peer.channel.close()
        again.hello("again", generation=peer.generation)
        again.welcomed(beats=False)
        if again.member != peer.member:
            raise Failure(f"member {peer.member} has become member {again.member}")
        again.generation, peer = peer.generation, again
    return "30 of 30 welcomed"


@row("60 workers ask for one rank at once")
def _():
    peers = [Peer() for _ in range(60)]
    for peer in peers:
        peer.hello("one rank", world_size=2)
    welcomes, refusals = 0, 0
    for peer in peers:
        try:
            peer.wait_for("welcome")
            welcomes += 1
        except grpc.RpcError as error:
            check_refusal("a rank that is taken", error.code(), error.details(),
                          Code.ALREADY_EXISTS, "rank 0")
            refusals += 1
    if welcomes != 1:
        raise Failure(f"{welcomes} workers were welcomed as rank 0, {refusals} were refused")
    return "1 welcome, 59 times ALREADY_EXISTS"


@row("1100 jobs at once, over 20 connections")
def _():
    shared = [channel() for _ in range(20)]
    peers = [Peer(reads=False, over=shared[i % 20]) for i in range(1100)]
    for i, peer in enumerate(peers):
        peer.hello(f"flood-{i}")
    refused = 0
    for peer in peers:
        try:
            next(peer.answers)
        except grpc.RpcError as error:
            check_refusal("a job beyond the limit", error.code(), error.details(),
                          Code.RESOURCE_EXHAUSTED, "at most 1000", "max_jobs")
            refused += 1
    # The first of them may be abandoned by now, which makes room for the last.
    if not 1 <= refused <= 200:
        raise Failure(f"{refused} jobs of 1100 were refused")
    close_all()
    wait_for_room()
    return f"{1100 - refused} are welcomed, {refused} times RESOURCE_EXHAUSTED"


def wait_for_room():
    """Waits until the server has closed abandoned jobs, so that another job may be opened."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return Peer().join("another").leave()
        except grpc.RpcError as error:
            if error.code() != Code.RESOURCE_EXHAUSTED or time.monotonic() > deadline:
                raise
        time.sleep(0.1)


@row("a heartbeat with a million rounds")
def _():
    peer = Peer().join("rounds")
    beat = control.Heartbeat()
    for i in range(1000000):
        beat.progress.add(group=i, round=i)
    peer.send(heartbeat=beat)
    peer.registered(spec_of("g", 4))
    return "the list is ignored, and the membership goes on"


@row("a message of 25 MiB on a Join stream")
def _():
    peer = Peer().join("large")
    peer.send(heartbeat=control.Heartbeat(figures={"device": "x" * (25 * MIB)}))
    return peer.expect_end("25 MiB", Code.RESOURCE_EXHAUSTED, "larger than max")


@row("a checkpoint's path of 15 MiB with line ends and escapes")
def _():
    peer = Peer().join("path")
    peer.registered(spec_of("g", 4))
    peer.send(checkpoint=control.CheckpointReport(step=1, path="\nforged line\x1b[31m" * (MIB - 1)))
    peer.registered(spec_of("later", 4))
    status = admin_grpc.AdminStub(channel()).GetStatus(admin.GetStatusRequest(), timeout=PATIENCE)
    text = str(next(job for job in status.jobs if job.job == "path"))
    if len(text) > 32 << 10 or "\\n" in text or "\\033" in text:
        raise Failure(f"GetStatus returns {len(text)} bytes: {text[:300]}")
    return f"the path is cut and escaped: {len(text)} bytes about the job"
