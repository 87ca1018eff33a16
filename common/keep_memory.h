// For the main functions of our programs; a library does not decide this for its
// host.

#ifndef SYNCGRADS_COMMON_KEEP_MEMORY_H_
#define SYNCGRADS_COMMON_KEEP_MEMORY_H_

namespace syncgrads {

// From here on freed memory stays with the process. By default glibc gives big
// buffers back to the kernel at once and takes them again for the next message,
// page fault by page fault: a fifth of the CPU time of a step over TCP
// (docs/performance.md). Call it before the first thread starts.
void KeepFreedMemory();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_KEEP_MEMORY_H_
