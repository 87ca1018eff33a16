// Directories for files that other users of the host must neither read nor replace.

#ifndef SYNCGRADS_COMMON_PRIVATE_DIRECTORY_H_
#define SYNCGRADS_COMMON_PRIVATE_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"

namespace syncgrads {

// Creates the directory, and those above it that do not exist, for this process's user only (mode
// 0700). If the directory exists, it must belong to this user; its mode is set to 0700. It must not
// have the sticky bit. If it has files and gives users outside of its group any right, it is not
// changed: it may be one that others need, such as /dev/shm.
//
// Others may have made a part of the path, or may replace one later, if a directory on the way is
// *shared*: every user may create files in it, or a group other than root's may. In a shared
// directory:
//
// - the next part of the path, which may be a link, must belong to this user or to root;
// - the sticky bit must be set, as in /tmp and /dev/shm, so that only the owner of a file may
//   replace it. It need not be set if the directory belongs to this user, who may have a private
//   group, or if it is a mount point and belongs to root: the volumes of Kubernetes have no sticky
//   bit.
//
// The owners of directories that are not shared are trusted.
//
// Errors:
//   PermissionDenied  the directory, or a part of the path in a shared directory, belongs to
//                     another user; the message has its path, its owner and this process's user.
//                     Or the directory seems to be used by others; the message has its mode.
//                     Or others could replace a part of the path; the message has the mode, the
//                     owner and the group of the directory that contains it.
//   Unavailable       the directory cannot be created or opened
absl::Status MakePrivateDirectory(const std::string& path);

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_PRIVATE_DIRECTORY_H_
