"""Connections that do not speak HTTP/2 as they should, and calls without a hello."""

import os
import random
import socket
import ssl
import threading
import time

import grpc
from hostile.peers import (MIB, PATIENCE, Code, Failure, Options, Peer, RawConnection,
                           Unfinished, channel, check_refusal, connect, control, control_grpc,
                           processor_seconds, row, struct)


def wait_until_closed(connections):
    deadline = time.monotonic() + PATIENCE
    for connection in connections:
        try:
            while True:
                connection.settimeout(max(0.01, deadline - time.monotonic()))
                if not connection.recv(65536):
                    break
        except socket.timeout:
            raise Failure(f"a connection is still open after {PATIENCE} s") from None
        except OSError:
            pass  # a reset is an end too


@row("300 connections with an HTTP/2 preface and nothing else, and 300 that send nothing at all")
def _():
    begun = [RawConnection() for _ in range(300)]
    for connection in begun:
        connection.send(RawConnection.PREFACE, RawConnection.frame(RawConnection.SETTINGS))
    silent = [connect() for _ in range(300)]
    begin = time.monotonic()
    wait_until_closed([connection.socket for connection in begun] + silent)
    return f"all are closed after {time.monotonic() - begin:.0f} s"


@row("HTTP/1.1, TLS and noise on the port")
def _():
    for noise in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", os.urandom(4096), b"\0" * 4096):
        connection = connect()
        connection.sendall(noise)
        wait_until_closed([connection])
    context = ssl.create_default_context()
    try:
        context.wrap_socket(connect(), server_hostname="localhost")
    except OSError as error:
        return f"the connections are closed; TLS: {error}"
    raise Failure("a TLS handshake succeeded")


@row("a call in writes of one byte")
def _():
    connection = RawConnection()
    connection.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    request = (RawConnection.PREFACE + RawConnection.frame(RawConnection.SETTINGS)
               + RawConnection.headers("/syncgrads.v1.Control/Probe")
               + RawConnection.frame(RawConnection.DATA, 1, 1, struct.pack(">BI", 0, 0)))
    for byte in request:
        connection.send(bytes([byte]))
    while frame := connection.read():
        if frame[0] == RawConnection.HEADERS and frame[1] & 1:
            return "it is answered like any other"
    raise Failure("the connection ended without an answer")


@row("200,000 pings on one connection")
def _():
    connection = RawConnection()
    connection.send(RawConnection.PREFACE, RawConnection.frame(RawConnection.SETTINGS))
    answered = 0
    for _ in range(200):
        try:
            connection.send(RawConnection.frame(RawConnection.PING, payload=b"\0" * 8) * 1000)
        except OSError:
            return f"the connection was closed after {answered} pings"
        expected = answered + 1000
        while answered < expected:
            frame = connection.read()
            if frame is None or frame[0] == RawConnection.GOAWAY:
                return f"the connection was closed after {answered} pings"
            answered += frame[0] == RawConnection.PING
    return f"{answered} are answered"


def headers_without_end(connection):
    """Sends headers that go on until the connection is closed. Returns the number of bytes."""
    sent = 0
    try:
        connection.send(RawConnection.frame(RawConnection.HEADERS, 0, 1, b"\x83\x86\x40\x7f"))
        while sent < 64 * MIB:
            connection.send(RawConnection.frame(RawConnection.CONTINUATION, 0, 1,
                                                b"\x80" * (16 << 10)))
            sent += 16 << 10
    except OSError:
        return sent
    raise Failure(f"{sent >> 20} MiB of headers were taken")


@row("headers that never end")
def _():
    connection = RawConnection()
    connection.send(RawConnection.PREFACE, RawConnection.frame(RawConnection.SETTINGS))
    before = processor_seconds()
    sent = headers_without_end(connection)
    spent = processor_seconds() - before
    if sent > 16 * MIB:  # most of it is in the kernel's buffers
        raise Failure(f"{sent >> 20} MiB were sent")
    return (f"the connection is closed; {sent >> 10} KiB were sent, which took {spent:.2f} s of the "
            "server's processor time")


@row("a first request of 4 MiB whose last byte never comes")
def _():
    # A connection that has sent little has more time.
    earlier = RawConnection()
    earlier.send(RawConnection.PREFACE, RawConnection.frame(RawConnection.SETTINGS))
    end = Unfinished("/syncgrads.v1.Control/Probe", 4 * MIB).run()
    earlier.send(RawConnection.frame(RawConnection.PING, payload=b"\0" * 8))
    while frame := earlier.read():
        if frame[0] == RawConnection.PING and frame[1] & 1:
            return end
    raise Failure(f"{end}, and a connection that was older is closed too")


@row("a connection that begins nothing, and answers pings")
def _():
    connection = RawConnection()
    connection.send(RawConnection.PREFACE, RawConnection.frame(RawConnection.SETTINGS))
    begin = time.monotonic()
    try:
        while (frame := connection.read()) is not None:
            if frame[0] == RawConnection.PING and not frame[1] & 1:
                connection.send(RawConnection.frame(RawConnection.PING, 1, payload=frame[3]))
    except OSError:
        pass
    return f"it is closed after {time.monotonic() - begin:.0f} s"


def opened_and_reset(path, streams):
    """Returns the frames that open each of the streams and reset it at once. The first streams of
    the connection must come first."""
    return b"".join((RawConnection.headers(path) if stream == 1
                     else RawConnection.headers_again(stream))
                    + RawConnection.frame(RawConnection.RESET, 0, stream, struct.pack(">I", 8))
                    for stream in streams)


@row("20,000 streams that are opened and reset at once")
def _():
    connection = RawConnection()
    connection.send(RawConnection.PREFACE, RawConnection.frame(RawConnection.SETTINGS))
    sent = 0
    try:
        for first in range(1, 40000, 200):
            connection.send(opened_and_reset("/syncgrads.v1.Control/Join",
                                             range(first, first + 200, 2)))
            sent += 100
    except OSError:
        pass  # the server has closed the connection
    control_grpc.ControlStub(channel()).Probe(control.ProbeRequest(), timeout=PATIENCE)
    return f"{sent} were taken, and another call is answered"


def await_message(connection):
    while (frame := connection.read()) is not None:
        if frame[0] == RawConnection.DATA:
            return
    raise OSError("closed")


def flood_with_resets(begin, path, first_stream):
    """For 3 s, opens and resets streams on three connections, without a pause, and connects again
    whenever one is closed. `begin` is called with each new connection."""
    deadline = time.monotonic() + 3
    resets = []

    def flood():
        while time.monotonic() < deadline:
            connection = RawConnection()
            try:
                connection.send(RawConnection.PREFACE, RawConnection.frame(RawConnection.SETTINGS))
                begin(connection)
                for first in range(first_stream, 1 << 20, 1000):
                    connection.send(opened_and_reset(path, range(first, first + 1000, 2)))
            except OSError:
                resets.append(connection)

    floods = [threading.Thread(target=flood) for _ in range(3)]
    for thread in floods:
        thread.start()
    for thread in floods:
        thread.join()
    control_grpc.ControlStub(channel()).Probe(control.ProbeRequest(), timeout=PATIENCE)
    if not resets:
        raise Failure("no connection was closed")
    return f"{len(resets)} connections were closed, and another call is answered"


@row("streams that are opened and reset without a pause, on three connections for 3 s")
def _():
    return flood_with_resets(lambda connection: None, "/syncgrads.v1.Data/Exchange", 1)


@row("the same from a peer that has been admitted, as a viewer is")
def _():
    def ask(connection):
        connection.send(RawConnection.headers("/syncgrads.v1.Admin/ReadClock"),
                        RawConnection.frame(RawConnection.DATA, 1, 1, bytes(5)))
        await_message(connection)
    return flood_with_resets(ask, "/syncgrads.v1.Admin/ReadClock", 3)


@row("the same from a member of a job")
def _():
    def join(connection):
        number = random.getrandbits(63) + 1
        hello = control.WorkerSignal(hello=control.Hello(
            protocol_version=2, job=f"resets-{number}", incarnation=number, rank=0, world_size=1,
            host="stranger")).SerializeToString()
        connection.send(RawConnection.headers("/syncgrads.v1.Control/Join"),
                        RawConnection.frame(RawConnection.DATA, 0, 1,
                                            struct.pack(">BI", 0, len(hello)) + hello))
        await_message(connection)
    return flood_with_resets(join, "/syncgrads.v1.Control/Join", 3)


@row("6,000 calls without a message, of a peer that never acknowledges the limit of streams")
def _():
    methods = ("/syncgrads.v1.Control/Join", "/syncgrads.v1.Data/Exchange",
               "/syncgrads.v1.Control/Probe", "/syncgrads.v1.Admin/GetStatus",
               "/syncgrads.v1.Admin/Events", "/grpc.health.v1.Health/Check")
    connections = [RawConnection() for _ in range(20)]
    for connection in connections:
        connection.acknowledges = False
        connection.send(RawConnection.PREFACE, RawConnection.frame(RawConnection.SETTINGS), *[
            RawConnection.headers(methods[number % len(methods)], 1 + 2 * number)
            for number in range(300)])
    # The server keeps 4,096 of them until the deadline for their message. The oldest end before.
    late = 0
    for connection in connections:
        ended = 0
        while ended < 300:
            frame = connection.read()
            if frame is None:
                raise Failure(f"a connection ended after {ended} streams")
            kind, flags, _, payload = frame
            if kind == RawConnection.HEADERS and flags & 1:
                ended += 1
                late += b"within 10s" in payload
    if late > 4096:
        raise Failure(f"{late} streams were kept until their deadline")
    return f"{late} were kept until their deadline"


@row("50 probes of 19 MiB, without a hello")
def _():
    stub = control_grpc.ControlStub(channel())
    # Until a call is admitted, the bytes of a connection are limited.
    stub.Probe(control.ProbeRequest(), timeout=PATIENCE)
    stub.Probe(control.ProbeRequest(padding=b"\0" * (MIB - 16)), timeout=PATIENCE)
    refusals = []
    for _ in range(50):
        try:
            stub.Probe(control.ProbeRequest(padding=b"\0" * (19 * MIB)), timeout=PATIENCE)
        except grpc.RpcError as error:
            refusals.append(check_refusal("a probe", error.code(), error.details(),
                                          Code.RESOURCE_EXHAUSTED, "19922949", "1048576"))
    if len(refusals) < 50:
        raise Failure(f"{50 - len(refusals)} probes were taken")
    return refusals[0]


@row("64 MiB of zeros in a compressed message, without a hello")
def _():
    try:
        control_grpc.ControlStub(channel()).Probe(
            control.ProbeRequest(padding=b"\0" * (64 * MIB)), timeout=PATIENCE,
            compression=grpc.Compression.Gzip)
    except grpc.RpcError as error:
        return check_refusal("a compressed message", error.code(), error.details(),
                             Code.UNIMPLEMENTED)
    raise Failure("a compressed message was taken")


@row("a first message of 1 MiB")
def _():
    peer = Peer()
    peer.hello("large", token="x" * MIB)
    return peer.expect_refusal("a large hello", Code.RESOURCE_EXHAUSTED, "65536")


@row("health and reflection")
def _():
    shared = channel()
    health = shared.unary_unary("/grpc.health.v1.Health/Check")(b"", timeout=PATIENCE)
    if health != b"\x08\x01":
        raise Failure(f"health answers {health}")
    for method, request, code in (("Check", b"\x0a\x04none", Code.NOT_FOUND),
                                  ("Watch", b"", Code.UNIMPLEMENTED)):
        try:
            shared.unary_unary(f"/grpc.health.v1.Health/{method}")(request, timeout=PATIENCE)
        except grpc.RpcError as error:
            check_refusal(method, error.code(), error.details(), code)
        else:
            raise Failure(f"{method} was answered")
    reflection = shared.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    services = next(reflection(iter([b"\x3a\x00"]), timeout=PATIENCE))
    if b"syncgrads.v1.Control" not in services:
        raise Failure(f"reflection answers {services}")
    return "SERVING, and the services"


@row("a call of a method that there is not")
def _():
    try:
        channel().unary_unary("/syncgrads.v1.Control/Shutdown")(b"", timeout=PATIENCE)
    except grpc.RpcError as error:
        return check_refusal("no method", error.code(), error.details(), Code.UNIMPLEMENTED,
                             "there is no method /syncgrads.v1.Control/Shutdown")
    raise Failure("a method that there is not was called")


@row("200 streams of reflection that stay open, which need a thread each")
def _():
    end = threading.Event()

    def nothing():
        end.wait(PATIENCE)
        yield from ()

    threads = f"/proc/{Options.pid}/task"
    before = len(os.listdir(threads))
    shared = channel()
    calls = [shared.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")(nothing())
             for _ in range(200)]
    deadline = time.monotonic() + PATIENCE
    while sum(call.is_active() for call in calls) > 16:
        if time.monotonic() > deadline:
            raise Failure(f"{sum(call.is_active() for call in calls)} streams are open")
        time.sleep(0.05)
    more = len(os.listdir(threads)) - before
    end.set()
    codes = {call.code().name for call in calls}
    if not codes <= {"OK", "RESOURCE_EXHAUSTED"} or more > 32:
        raise Failure(f"the streams end with {codes}; {more} more threads")
    return f"{sorted(codes)}, {more} more threads"
