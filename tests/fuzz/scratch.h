// Files for targets whose parsers take a path.

#ifndef SYNCGRADS_TESTS_FUZZ_SCRATCH_H_
#define SYNCGRADS_TESTS_FUZZ_SCRATCH_H_

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/string_view.h"
#include "tests/fuzz/fuzz_target.h"

namespace syncgrads::fuzz {

// A directory in memory, or in the system's directory for temporary files if there is no /dev/shm:
// a target creates several files for each input. The destructor removes it.
class ScratchDirectory {
 public:
  ScratchDirectory() {
    const std::filesystem::path memory = "/dev/shm";
    const std::filesystem::path parent =
        std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path();
    path_ = (parent / "syncgrads-fuzz.XXXXXX").string();
    Require(mkdtemp(path_.data()) != nullptr, "a temporary directory can be made");
  }
  ~ScratchDirectory() { std::filesystem::remove_all(path_); }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;

  std::string PathOf(const std::string& name) const { return path_ + "/" + name; }
  void Write(const std::string& name, absl::string_view contents) const {
    std::ofstream(PathOf(name), std::ios::binary) << contents;
  }
  std::string Read(const std::string& name) const {
    std::ifstream file(PathOf(name), std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

 private:
  std::string path_;
};

}  // namespace syncgrads::fuzz

#endif  // SYNCGRADS_TESTS_FUZZ_SCRATCH_H_
