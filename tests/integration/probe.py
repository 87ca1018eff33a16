"""Sends a server requests that only a generic gRPC client would send.

  probe.py health ADDRESS          prints SERVING
  probe.py services ADDRESS        prints the services that reflection lists
  probe.py version ADDRESS NUMBER  joins with another protocol version; prints the
                                   refusal
"""

import sys

import grpc

TIMEOUT = 60  # seconds


def field(number, payload):
    """Encodes a length-delimited protobuf field with a short payload."""
    return bytes([number << 3 | 2, len(payload)]) + payload


def health(channel):
    # Sends HealthCheckRequest{} and expects HealthCheckResponse{status: SERVING}.
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    answer = check(b"", timeout=TIMEOUT, wait_for_ready=True)
    print("SERVING" if answer == b"\x08\x01" else answer)


def services(channel):
    # ServerReflectionRequest{list_services: "*"}
    info = channel.stream_stream(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")
    answers = info(iter([field(7, b"*")]), timeout=TIMEOUT, wait_for_ready=True)
    print(next(answers).decode("latin-1"))


def version(channel, number):
    # WorkerSignal{hello: {protocol_version, job, incarnation: 1, world_size: 1}}
    hello = (bytes([1 << 3, int(number)]) + field(2, b"probe") +
             bytes([5 << 3 | 1, 1, 0, 0, 0, 0, 0, 0, 0]) + bytes([7 << 3, 1]))
    join = channel.stream_stream("/syncgrads.v1.Control/Join")
    try:
        for answer in join(iter([field(1, hello)]), timeout=TIMEOUT, wait_for_ready=True):
            print(answer)
    except grpc.RpcError as error:
        print(error.code().name, error.details())


def main():
    what, address, *rest = sys.argv[1:]
    with grpc.insecure_channel(address) as channel:
        {"health": health, "services": services, "version": version}[what](channel, *rest)


if __name__ == "__main__":
    main()
