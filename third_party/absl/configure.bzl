"""Finds how to link the system's Abseil: the repository @absl.

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

def _configure(ctx):
    result = ctx.execute(["pkg-config", "--libs-only-l"] + _MODULES)
    if result.return_code != 0:
        fail("pkg-config does not find Abseil; the packages pkgconf and libabsl-dev are needed:\n" +
             result.stderr)
    options = []
    for option in result.stdout.strip().split(" "):
        if option and option not in options:
            options.append(option)
    ctx.file("defs.bzl", "ABSL_LINKOPTS = %r\n" % options)
    ctx.file("BUILD", "")

absl_configure = repository_rule(
    implementation = _configure,
    configure = True,
    local = True,
)
