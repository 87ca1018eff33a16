// Directories for files that other users of the host must neither read nor replace.

#ifndef SYNCGRADS_COMMON_PRIVATE_DIRECTORY_H_
#define SYNCGRADS_COMMON_PRIVATE_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"

namespace syncgrads {

// Creates the directory, and those above it that do not exist, for this process's user only (mode
// 0700). If the directory exists and belongs to this user, sets its mode to 0700.
//
// A directory in which every user may create files, such as /dev/shm, may contain one that another
// user has made, or a symbolic link of another user. These are not used: in such a directory, each
// part of the path must belong to this user or to root.
//
// Errors:
//   PermissionDenied  a part of the path belongs to another user; the message has its path, its
//                     owner and this process's user
//   Unavailable       the directory cannot be created or opened
absl::Status MakePrivateDirectory(const std::string& path);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_PRIVATE_DIRECTORY_H_
