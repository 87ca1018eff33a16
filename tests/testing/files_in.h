// Counts files.

#ifndef SYNCGRADS_TESTS_TESTING_FILES_IN_H_
#define SYNCGRADS_TESTS_TESTING_FILES_IN_H_

#include <cstddef>
#include <filesystem>
#include <string>
#include <system_error>

namespace syncgrads::testing {

// Returns the number of files in a folder and the folders within it. Files may come and go
// meanwhile.
inline size_t FilesIn(const std::string& folder) {
  size_t files = 0;
  std::error_code error;
  std::filesystem::recursive_directory_iterator entry(folder, error);
  for (const std::filesystem::recursive_directory_iterator end; !error && entry != end;
       entry.increment(error)) {
    std::error_code gone;
    if (entry->is_regular_file(gone)) ++files;
  }
  return files;
}

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_FILES_IN_H_
