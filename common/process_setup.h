// Settings of the process, for the main functions of our programs. A library must not make these
// decisions for its host program.

#ifndef SYNCGRADS_COMMON_PROCESS_SETUP_H_
#define SYNCGRADS_COMMON_PROCESS_SETUP_H_

namespace syncgrads {

// Makes the settings that all of our programs use (docs/performance.md has the gain of each). Must
// be called before the first thread starts.
//
//   - Standard streams that are closed become /dev/null.
//   - Freed memory stays with the process, unless it has an allocator of its own, as ps-server has
//     (third_party/jemalloc). By default, glibc returns large buffers to the kernel at once, and
//     each new message takes page faults for its buffer again.
//   - Abseil's deadlock detection is turned off. gRPC takes Abseil's locks for every message. The
//     detection is on by default if Abseil was compiled with assertions, as in Debian.
//   - SIGXFSZ is ignored. By default, a file that would be longer than the limit (ulimit -f) ends
//     the process; now the call fails with EFBIG.
void SetUpProcess();

// Raises the limit of open file descriptors to the hard limit. For servers: many systems have a
// default of 1024, which connections use up quickly. If this fails, the limit stays as it is.
void RaiseDescriptorLimit();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_PROCESS_SETUP_H_
