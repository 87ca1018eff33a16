"""C++ code for .proto files, made by the system's protoc and gRPC plugin."""

def cc_proto(name, src, deps = [], grpc = False, visibility = None):
    """A cc_library of the messages (and services, with grpc) of one .proto file.

    Args:
      name: the library's name.
      src: the .proto file, in the calling package; it is imported and included
        by its path from the workspace's root.
      deps: the cc_proto libraries of the files it imports.
      grpc: whether to generate service code as well.
      visibility: as everywhere.
    """
    stem = native.package_name() + "/" + src[:-len(".proto")]
    outs = [src[:-len(".proto")] + ".pb.h", src[:-len(".proto")] + ".pb.cc"]
    command = ("protoc --proto_path=. --cpp_out=$(GENDIR)")
    if grpc:
        outs += [src[:-len(".proto")] + ".grpc.pb.h", src[:-len(".proto")] + ".grpc.pb.cc"]
        command += " --plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin --grpc_out=$(GENDIR)"
    native.genrule(
        name = name + "_generate",
        srcs = [src] + [dep + "_source" for dep in deps],
        outs = outs,
        cmd = command + " " + stem + ".proto",
    )
    native.filegroup(
        name = name + "_source",
        srcs = [src] + [dep + "_source" for dep in deps],
        visibility = visibility,
    )
    native.cc_library(
        name = name,
        srcs = [out for out in outs if out.endswith(".cc")],
        hdrs = [out for out in outs if out.endswith(".h")],
        copts = ["-w"],
        visibility = visibility,
        deps = deps + ["//third_party:grpc" if grpc else "//third_party:protobuf"],
    )
