// Random numbers that differ between processes.

#ifndef SYNCGRADS_COMMON_RANDOM_NUMBER_H_
#define SYNCGRADS_COMMON_RANDOM_NUMBER_H_

#include <cstdint>

namespace syncgrads {

// Draws 64 bits from the system's source of random numbers. Never 0. Thread-safe.
uint64_t DrawRandomNumber();

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_RANDOM_NUMBER_H_
