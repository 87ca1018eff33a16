"""Local streams (common/local/message_reader.h) of processes of the server's user."""

import os
import socket
import struct
import time

from hostile.peers import (MIB, PATIENCE, CODES, Code, Failure, Options, Peer, _open,
                           check_refusal, data, floats, pair, row, spec_of)
from hostile.pushes import SPEC, TWO, WRONG_HELLOS, expect_values

INVALID = Code.INVALID_ARGUMENT
READY, MESSAGE, END, PING, PONG = range(1, 6)


class LocalStream:
    def __init__(self):
        name = f"@syncgrads-streams-{Options.pid}-"
        with open("/proc/net/unix") as sockets:
            address = next(line.split()[-1] for line in sockets if name in line)
        self.socket = socket.socket(socket.AF_UNIX)
        _open.append(self.socket)
        self.socket.settimeout(PATIENCE)
        self.socket.connect("\0" + address[1:])
        kind, _ = self.next()
        if kind != READY:
            raise Failure(f"the first message of the server has kind {kind}")

    def raw(self, data_):
        try:
            self.socket.sendall(data_)
        except OSError:
            pass  # the server has ended the stream; why is read by next()

    def send(self, kind, body=b""):
        self.raw(struct.pack("<II", kind, len(body)) + body)

    def read(self, count):
        read = b""
        while len(read) < count:
            try:
                more = self.socket.recv(count - len(read))
            except socket.timeout:
                raise Failure(f"no message within {PATIENCE} s") from None
            if not more:
                raise Failure("the connection ends without a reason")
            read += more
        return read

    def next(self):
        kind, length = struct.unpack("<II", self.read(8))
        return kind, self.read(length)

    def answer(self):
        kind, body = self.next()
        if kind != MESSAGE:
            raise Failure(f"an answer has kind {kind}: {body[:200]}")
        return data.UpdateChunk.FromString(body)

    def expect_end(self, what, codes, *texts):
        kind, body = self.next()
        if kind != END:
            raise Failure(f"{what} is answered with kind {kind}: {body[:200]}")
        code = struct.unpack("<I", body[:4])[0]
        return check_refusal(what, CODES[code], body[4:].decode(), codes, *texts)


@row("noise, HTTP/2, and messages of kinds and lengths that there are not, on a local stream")
def _():
    reactions = []
    for noise, code, text in ((os.urandom(4096), INVALID, "kind"),
                              (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", INVALID, "kind"),
                              (b"\0" * 4096, INVALID, "kind 0"),
                              (struct.pack("<II", 6, 0), INVALID, "kind 6"),
                              (struct.pack("<II", END, 4) + b"\0" * 4, INVALID, "a client"),
                              (struct.pack("<II", READY, 0), INVALID, "a client"),
                              (struct.pack("<II", MESSAGE, 65537), Code.RESOURCE_EXHAUSTED, "65537"),
                              (struct.pack("<II", MESSAGE, (1 << 32) - 1),
                               Code.RESOURCE_EXHAUSTED, "4294967295"),
                              (struct.pack("<II", MESSAGE, 3) + b"\xff\xff\xff", INVALID, "")):
        stream = LocalStream()
        stream.raw(noise)
        reactions.append(stream.expect_end(str(noise[:8]), code, text))
    return reactions


@row("300 local streams that say nothing, or half of a hello")
def _():
    begin = time.monotonic()
    streams = [LocalStream() for _ in range(300)]
    for stream in streams[::2]:
        stream.raw(struct.pack("<II", MESSAGE, 1000) + b"half")
    for stream in streams:
        stream.expect_end("silence", Code.DEADLINE_EXCEEDED, "no hello")
    return f"all are told so after {time.monotonic() - begin:.0f} s"


@row("a local stream with a wrong token, job, member, incarnation or version, and without a hello")
def _():
    peer = Peer().join("local hello", token="right")
    good = {"token": "right"}
    reactions = []
    for more, code, text in WRONG_HELLOS:
        stream = LocalStream()
        stream.send(MESSAGE, peer.data_hello(**{**good, **more}).SerializeToString())
        reactions.append(stream.expect_end(str(more), code, text))
    stream = LocalStream()
    stream.send(MESSAGE, peer.push(1, TWO).SerializeToString())
    reactions.append(stream.expect_end("no hello", Code.FAILED_PRECONDITION, "must be a hello"))
    return reactions


@row("a million pings on a local stream, of which no answer is read")
def _():
    stream = LocalStream()
    stream.socket.setblocking(False)
    pings = struct.pack("<II", PING, 0) * 10000
    sent = 0
    for _ in range(100):
        try:
            sent += stream.socket.send(pings)
        except BlockingIOError:
            time.sleep(0.01)
    return f"{sent >> 3} pings were taken"


@row("a push of another member, and a wrong payload, on a local stream")
def _():
    first, second = pair("local pushes", SPEC)
    streams = []
    for peer in first, second:
        stream = LocalStream()
        stream.send(MESSAGE, peer.data_hello().SerializeToString())
        streams.append(stream)
    forger = LocalStream()
    forger.send(MESSAGE, first.data_hello().SerializeToString())
    forger.send(MESSAGE, first.push(1, TWO, member=second.member,
                                    incarnation=second.incarnation).SerializeToString())
    reactions = [forger.expect_end("another's push", INVALID, str(second.incarnation))]
    streams[0].send(MESSAGE, first.push(1, TWO[:-1]).SerializeToString())
    error = streams[0].answer().error
    reactions.append(check_refusal("a short payload", CODES[error.code], error.message, INVALID,
                                   "4095 bytes"))
    for peer, stream in zip((first, second), streams):
        stream.send(MESSAGE, peer.push(1, TWO).SerializeToString())
    for stream in streams:
        expect_values(stream.answer(), 2.0, 2)
    return reactions


@row("a member that reads no results of a local stream, and one that is cut off within a push")
def _():
    elements = MIB
    peer = Peer().join("local unread")
    peer.wait_for("epoch")
    peer.registered(spec_of("g", elements, chunk_bytes=4 * MIB))
    payload = floats(1.0) * elements
    stream = LocalStream()
    stream.send(MESSAGE, peer.data_hello().SerializeToString())
    for round_ in range(1, 30):
        stream.socket.settimeout(0.5)
        try:
            body = peer.push(round_, payload).SerializeToString()
            stream.socket.sendall(struct.pack("<II", MESSAGE, len(body)) + body)
        except OSError:
            break
    stream.socket.close()
    # On a new stream, the rounds go on.
    stream = LocalStream()
    stream.send(MESSAGE, peer.data_hello().SerializeToString())
    for next_ in range(1, round_ + 2):
        stream.send(MESSAGE, peer.push(next_, payload).SerializeToString())
        update = stream.answer()
        if not update.HasField("error"):
            break
        check_refusal(f"round {next_}", CODES[update.error.code], update.error.message,
                      Code.FAILED_PRECONDITION, "no longer kept")
    if list(update.counts) != [1]:
        raise Failure(f"round {next_} has {update}")
    return f"{round_} rounds were pushed, round {next_} goes on"
