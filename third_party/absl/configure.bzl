"""Finds how to link the system's Abseil, and gRPC with it: the repository @absl.

Releases of Abseil differ in how many libraries they have, and in which library has
a function. pkg-config knows this of the release that is installed.
"""

# Linked wherever Abseil is: the linker leaves out libraries that a program does not use.
_MODULES = [
    "absl_base",
    "absl_cord",
    "absl_flags",
    "absl_flags_parse",
    "absl_flags_usage",
    "absl_flat_hash_map",
    "absl_flat_hash_set",
    "absl_hash",
    "absl_optional",
    "absl_status",
    "absl_statusor",
    "absl_str_format",
    "absl_strings",
    "absl_synchronization",
    "absl_time",
    "absl_variant",
]

# Newer releases of re2, which gRPC needs, use this module, and their file for pkg-config does not
# say so. Older releases of Abseil do not have it.
_LOG = "absl_log"

# Parts of the C library, which stays shared.
_C_LIBRARIES = ["-ldl", "-lm", "-lpthread", "-lrt"]

def _libraries(ctx, arguments):
    result = ctx.execute(["pkg-config", "--libs-only-l"] + arguments)
    if result.return_code != 0:
        fail("pkg-config does not find Abseil or gRPC; the packages pkgconf, libabsl-dev and " +
             "libgrpc++-dev are needed:\n" + result.stderr)
    options = []
    for option in result.stdout.strip().split(" "):
        if option and option not in options:
            options.append(option)
    return options

def _configure(ctx):
    # For a program that has in itself all that gRPC needs.
    static, shared = ["-l:libstdc++.a"], ["-static-libgcc"]
    has_log = ctx.execute(["pkg-config", "--exists", _LOG]).return_code == 0
    modules = _MODULES + ([_LOG] if has_log else [])
    for option in _libraries(ctx, ["--static", "grpc++", "protobuf"] + modules):
        if option in _C_LIBRARIES:
            shared.append(option)
        else:
            static.append("-l:lib%s.a" % option[2:])
    ctx.file("defs.bzl", "ABSL_LINKOPTS = %r\nSTATIC_GRPC_LINKOPTS = %r\n" % (
        _libraries(ctx, _MODULES),
        ["-Wl,--start-group"] + static + ["-Wl,--end-group"] + shared,
    ))
    ctx.file("BUILD", "")

absl_configure = repository_rule(
    implementation = _configure,
    configure = True,
    local = True,
)
