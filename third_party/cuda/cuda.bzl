"""Compiles CUDA kernels."""

load("@cuda//:defs.bzl", "CUDA_HOME", "CUDA_VERSION")

# Machine code for the newest supported devices, and two forms that the driver translates: one for
# older devices, from the oldest that CUDA 13 supports, and one for future devices.
_ARCHITECTURES = [
    "arch=compute_75,code=compute_75",
    "arch=compute_90,code=sm_90",
    "arch=compute_90,code=compute_90",
]

# a*b+c is not contracted, as on processors (.bazelrc).
_OPTIONS = [
    "-std=c++20",
    "-O2",
    "--extended-lambda",
    "--expt-relaxed-constexpr",
    "--fmad=false",
    "-Xcompiler=-fPIC,-Wall,-ffp-contract=off",
    "-DSYNCGRADS_CUDA_VERSION=" + CUDA_VERSION,  # another toolkit recompiles
]

def cuda_objects(srcs, hdrs):
    """An object file for each of `srcs`, *.cu; none without the CUDA toolkit.

    Args:
      srcs: files of this package.
      hdrs: what they include of this workspace.

    Returns:
      Labels for the srcs of a cc_library.
    """
    if not CUDA_HOME:
        return []
    objects = []
    for source in srcs:
        object = source.replace(".cu", ".cu.o")
        native.genrule(
            name = source.replace(".cu", "_object"),
            srcs = [source] + hdrs,
            outs = [object],
            cmd = " ".join(
                [CUDA_HOME + "/bin/nvcc"] + _OPTIONS +
                ["-gencode=" + architecture for architecture in _ARCHITECTURES] +
                ["-I. -c $(location %s) -o $@" % source],
            ) + select({
                "//third_party/cuda:strict": " -Xcompiler=-Werror",
                "//conditions:default": "",
            }),
            message = "Compiling for CUDA",
            visibility = ["//visibility:private"],
        )
        objects.append(object)
    return objects
