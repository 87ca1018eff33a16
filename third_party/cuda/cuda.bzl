"""Compiles CUDA kernels."""

load("@cuda//:defs.bzl", "CUDA_HOME", "CUDA_VERSION")

# The devices that there is machine code for, each with the first toolkit that compiles it. A device
# also runs the code of a lower number with the same first digits: 75 is for T4; 80 for A100, A10, L4,
# L40S, RTX 30 and 40; 90 for H100 and H200; 100 for B200 and B300; 120 for RTX 50. The driver
# translates the PTX for other devices.
_DEVICES = [
    ("75", 12000),
    ("80", 12000),
    ("90", 12000),
    ("100", 12080),
    ("120", 12080),
]
_PTX = "arch=compute_90,code=compute_90"

def _architectures():
    return [
        "arch=compute_%s,code=sm_%s" % (device, device)
        for device, version in _DEVICES
        if int(CUDA_VERSION) >= version
    ] + [_PTX]

# a*b+c is not contracted, as on processors (.bazelrc).
_OPTIONS = [
    "-std=c++20",
    "-O2",
    "--extended-lambda",
    "--expt-relaxed-constexpr",
    "--fmad=false",
    "-lineinfo",  # profilers show lines of the sources
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
                ["-gencode=" + architecture for architecture in _architectures()] +
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
