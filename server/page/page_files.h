// The files of the live page, which are embedded in the program when it is built (embed.sh).

#ifndef SYNCGRADS_SERVER_PAGE_PAGE_FILES_H_
#define SYNCGRADS_SERVER_PAGE_PAGE_FILES_H_

#include <string_view>

#include "absl/types/span.h"

namespace syncgrads::server {

struct PageFile {
  // The file's name without its folder, for example "page.css".
  std::string_view name;
  std::string_view contents;
};

// Returns all files. They live as long as the program.
absl::Span<const PageFile> PageFiles();

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_PAGE_PAGE_FILES_H_
