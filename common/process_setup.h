// For the main functions of our programs; a library does not decide this for its
// host.

#ifndef SYNCGRADS_COMMON_PROCESS_SETUP_H_
#define SYNCGRADS_COMMON_PROCESS_SETUP_H_

namespace syncgrads {

// What every program of ours wants of the libraries under it (docs/performance.md has
// what each gains). Call it before the first thread starts.
//
// - Freed memory stays with the process. By default glibc gives big buffers back to the
//   kernel at once and takes them again for the next message, page fault by page fault.
// - Abseil's locks, which gRPC takes for every message, are not searched for deadlocks.
//   They are by default where Abseil was compiled with assertions, as Debian's is.
void SetUpProcess();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_PROCESS_SETUP_H_
