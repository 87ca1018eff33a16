// Options of the address sanitizer for servers whose memory a test measures.

#ifndef SYNCGRADS_TESTS_TESTING_SMALL_QUARANTINE_H_
#define SYNCGRADS_TESTS_TESTING_SMALL_QUARANTINE_H_

namespace syncgrads::testing {

// The value of ASAN_OPTIONS. To find uses of freed memory, the sanitizer keeps some: 16 MiB in all
// and 64 KiB for each thread. By default it keeps 256 MiB and 1 MiB, and a server has dozens of
// threads.
inline constexpr char kSmallQuarantine[] =
    "quarantine_size_mb=16:thread_local_quarantine_size_kb=64";

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_SMALL_QUARANTINE_H_
