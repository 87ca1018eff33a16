// Simulates a system that starts no more threads.

#ifndef SYNCGRADS_TESTS_TESTING_NO_THREADS_H_
#define SYNCGRADS_TESTS_TESTING_NO_THREADS_H_

#include <gtest/gtest.h>
#include <pthread.h>

#include <cstddef>

namespace syncgrads::testing {

// While this object exists, the stack of a new thread is larger than the address space: std::thread
// throws.
class NoThreads {
 public:
  NoThreads() {
    EXPECT_EQ(pthread_getattr_default_np(&before_), 0);
    pthread_attr_t huge;
    EXPECT_EQ(pthread_getattr_default_np(&huge), 0);
    EXPECT_EQ(pthread_attr_setstacksize(&huge, size_t{1} << 50), 0);
    EXPECT_EQ(pthread_setattr_default_np(&huge), 0);
    pthread_attr_destroy(&huge);
  }
  ~NoThreads() {
    pthread_setattr_default_np(&before_);
    pthread_attr_destroy(&before_);
  }
  NoThreads(const NoThreads&) = delete;
  NoThreads& operator=(const NoThreads&) = delete;

 private:
  pthread_attr_t before_;
};

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_NO_THREADS_H_
