// The function that the C++ library's assertions call (-D_GLIBCXX_ASSERTIONS in .bazelrc). The
// shared library has its own, because only the C++ library of GCC 12 and newer has one, and the
// wheel promises to run with that of GCC 11 (deploy/package/wheel).

#include <cstdio>
#include <cstdlib>

namespace std {

__attribute__((noreturn)) void __glibcxx_assert_fail(const char* file, int line,
                                                     const char* function,
                                                     const char* condition) noexcept {
  std::fprintf(stderr, "%s:%d: %s: Assertion '%s' failed.\n", file, line, function, condition);
  std::abort();
}

}  // namespace std
