// A directory for one test. The destructor removes it.

#ifndef SYNCGRADS_TESTS_WORKER_TESTING_TEMPORARY_DIRECTORY_H_
#define SYNCGRADS_TESTS_WORKER_TESTING_TEMPORARY_DIRECTORY_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace syncgrads {

class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_(::testing::TempDir() + "/syncgrads.XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "cannot make " << path_;
  }
  ~TemporaryDirectory() { std::filesystem::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const std::string& path() const { return path_; }

  // Writes a file and creates its parent directories. Returns the file's path.
  std::string Write(const std::string& name, const std::string& contents) const {
    const std::filesystem::path file = std::filesystem::path(path_) / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file, std::ios::binary) << contents;
    return file.string();
  }

 private:
  std::string path_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_TESTING_TEMPORARY_DIRECTORY_H_
