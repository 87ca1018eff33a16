#include "worker/nn/cuda/cublas_search.h"

#include <glob.h>

#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

namespace syncgrads::cuda {
namespace {

std::filesystem::path InstalledBeside(const std::filesystem::path& program) {
  return program.parent_path() / "lib/cublas";
}

}  // namespace

std::vector<std::string> FindCublas(int major, const std::filesystem::path& program,
                                    const std::filesystem::path& root) {
  const std::string name = absl::StrCat("libcublas.so.", major);
  std::vector<std::string> found;
  // The packages of pip have their libraries in nvidia/cublas/lib or, since CUDA 13, in
  // nvidia/cu13/lib.
  const std::filesystem::path patterns[] = {
      InstalledBeside(program) / "nvidia/*/lib",
      root / "usr/local/cuda*/lib64",
      root / "usr/local/cuda*/targets/*/lib",
      root / "usr/local/lib/python3*/*-packages/nvidia/*/lib",
      root / "usr/lib/python3*/*-packages/nvidia/*/lib",
  };
  for (const std::filesystem::path& pattern : patterns) {
    glob_t matches = {};
    if (glob((pattern / name).c_str(), 0, nullptr, &matches) == 0) {
      found.insert(found.end(), matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
    }
    globfree(&matches);
  }
  return found;
}

std::string CublasCommand(int major, const std::filesystem::path& program) {
  // The name of the package has no version any more since CUDA 13.
  const std::string package = major >= 13 ? absl::StrCat("\"nvidia-cublas==", major, ".*\"")
                                          : absl::StrCat("nvidia-cublas-cu", major);
  return absl::StrCat("pip install --target=", InstalledBeside(program).string(), " ", package);
}

}  // namespace syncgrads::cuda
