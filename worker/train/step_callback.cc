#include "worker/train/step_callback.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/base/file.h"

namespace syncgrads {

StepCallback SaveEvery(uint64_t every, std::string path) {
  return [every, path = std::move(path)](const MadeStep& made) {
    if (made.rank != 0 || made.step % every != 0) return absl::OkStatus();
    return made.save(WithSuffix(path, absl::StrCat("step", made.step)));
  };
}

}  // namespace syncgrads
