"""Finds the CUDA toolkit: the repository @cuda.

It is looked for in $CUDA_HOME, else in /usr/local/cuda. Where there is none, or
$SYNCGRADS_CUDA is 0, everything is built without it.
"""

_LEAST_VERSION = 12000

_BUILD = """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "runtime",
    hdrs = glob([
        "include/*.h",
        "include/*.hpp",
        "include/crt/**",
        "include/nv/**",
        "include/nvtx3/**",
        "include/cccl/nv/**",
    ]),
    includes = ["include", "include/cccl"],
    linkopts = [
        "-L{home}/lib64",
        "-lcudart_static",
        "-ldl",
        "-lrt",
        "-lpthread",
    ],
)
"""

_DEFS = """
CUDA_HOME = "{home}"
CUDA_VERSION = "{version}"

def if_cuda(there, otherwise):
    \"\"\"`there` if the toolkit was found.\"\"\"
    return {choice}
"""

def _version_of(ctx, home):
    header = ctx.path(home + "/include/cuda_runtime_api.h")
    if not header.exists or not ctx.path(home + "/bin/nvcc").exists:
        return 0
    for line in ctx.read(header).split("\n"):
        words = [word for word in line.split(" ") if word]
        if len(words) == 3 and words[0] == "#define" and words[1] == "CUDART_VERSION":
            return int(words[2])
    return 0

def _configure(ctx):
    home = ctx.os.environ.get("CUDA_HOME", "") or "/usr/local/cuda"
    version = 0
    if ctx.os.environ.get("SYNCGRADS_CUDA", "1") != "0":
        version = _version_of(ctx, home)
    if version > 0 and version < _LEAST_VERSION:
        print("CUDA in %s has version %d, %d is needed: builds without it" %
              (home, version, _LEAST_VERSION))
    found = version >= _LEAST_VERSION
    ctx.file("defs.bzl", _DEFS.format(
        home = home if found else "",
        version = version if found else 0,
        choice = "there" if found else "otherwise",
    ))
    if found:
        ctx.symlink(home + "/include", "include")
        ctx.file("BUILD", _BUILD.format(home = home))
    else:
        ctx.file("BUILD", "")

cuda_configure = repository_rule(
    implementation = _configure,
    environ = ["CUDA_HOME", "SYNCGRADS_CUDA"],
    configure = True,
    local = True,
)
