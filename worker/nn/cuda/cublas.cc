#include "worker/nn/cuda/cublas.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

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
  std::string tried;
  void* library = nullptr;
  // Try the loader's search path first (LD_LIBRARY_PATH, ldconfig), then the directory that the
  // program was built with.
  for (const std::string& path : {name, absl::StrCat(SYNCGRADS_CUDA_LIBRARIES, "/", name)}) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    absl::StrAppend(&tried, "; ", dlerror());
  }
  if (library == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat("cannot load cuBLAS, which CUDA devices need: LD_LIBRARY_PATH must contain "
                     "the directory that ",
                     name, " is in", tried));
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
