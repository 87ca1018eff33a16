#include "worker/nn/cuda/cublas.h"

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/nn/cuda/cublas_search.h"

namespace syncgrads::cuda {
namespace {

template <typename Function>
absl::Status Find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function != nullptr) return absl::OkStatus();
  return absl::UnimplementedError(absl::StrCat("cuBLAS has no function ", name));
}

absl::StatusOr<Cublas> Load() {
  const std::string name = absl::StrCat("libcublas.so.", CUBLAS_VER_MAJOR);
  std::error_code ignored;
  const std::filesystem::path program =
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  // Try the loader's search path first (LD_LIBRARY_PATH, ldconfig), then the directory that the
  // program was built with, then where other packages install it.
  std::vector<std::string> paths = {name, absl::StrCat(SYNCGRADS_CUDA_LIBRARIES, "/", name)};
  for (std::string& path : FindCublas(CUBLAS_VER_MAJOR, program, "/")) {
    paths.push_back(std::move(path));
  }
  std::string tried;
  void* library = nullptr;
  for (const std::string& path : paths) {
    // The loader does not search the directory of cuBLAS for the library that cuBLAS needs. It
    // takes a loaded one.
    const std::filesystem::path needed = std::filesystem::path(path).replace_filename(
        absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR));
    if (needed.has_parent_path()) dlopen(needed.c_str(), RTLD_NOW | RTLD_LOCAL);
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    absl::StrAppend(&tried, "; ", dlerror());
  }
  if (library == nullptr) {
    return absl::UnimplementedError(absl::StrCat(
        "cannot load cuBLAS, which CUDA devices need: LD_LIBRARY_PATH must contain the directory "
        "that ",
        name, " is in, or install it with: ", CublasCommand(CUBLAS_VER_MAJOR, program), tried));
  }
  Cublas cublas;
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cublasCreate_v2", cublas.create));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cublasDestroy_v2", cublas.destroy));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cublasSetStream_v2", cublas.set_stream));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cublasSetWorkspace_v2", cublas.set_workspace));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cublasGemmEx_64", cublas.multiply));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cublasGetStatusString", cublas.describe));
  return cublas;
}

}  // namespace

absl::StatusOr<const Cublas*> LoadCublas() {
  static const auto& loaded = *new absl::StatusOr<Cublas>(Load());
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace syncgrads::cuda
