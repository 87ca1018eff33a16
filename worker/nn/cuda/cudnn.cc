#include "worker/nn/cuda/cudnn.h"

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
  return absl::UnimplementedError(absl::StrCat("cuDNN has no function ", name));
}

absl::StatusOr<Cudnn> Load() {
  const std::string name = "libcudnn.so.9";
  std::string tried;
  void* library = nullptr;
  // Try the loader's search path first (LD_LIBRARY_PATH, ldconfig), then the directory of the
  // toolkit that the program was built with.
  for (const std::string& path : {name, absl::StrCat(SYNCGRADS_CUDA_LIBRARIES, "/", name)}) {
    library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    absl::StrAppend(&tried, tried.empty() ? "" : "; ", dlerror());
  }
  if (library == nullptr) {
    return absl::UnimplementedError(absl::StrCat("cannot load ", name, " (", tried, ")"));
  }
  Cudnn cudnn;
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnGetVersion", cudnn.get_version));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnGetErrorString", cudnn.describe));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnGetLastErrorString", cudnn.get_last_error));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnCreate", cudnn.create));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnDestroy", cudnn.destroy));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnSetStream", cudnn.set_stream));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnBackendCreateDescriptor", cudnn.create_descriptor));
  SYNCGRADS_RETURN_IF_ERROR(
      Find(library, "cudnnBackendDestroyDescriptor", cudnn.destroy_descriptor));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnBackendSetAttribute", cudnn.set_attribute));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnBackendGetAttribute", cudnn.get_attribute));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnBackendFinalize", cudnn.finalize));
  SYNCGRADS_RETURN_IF_ERROR(Find(library, "cudnnBackendExecute", cudnn.execute));
  return cudnn;
}

}  // namespace

absl::StatusOr<const Cudnn*> LoadCudnn() {
  static const auto& loaded = *new absl::StatusOr<Cudnn>(Load());
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace syncgrads::cuda
