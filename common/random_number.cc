#include "common/random_number.h"

#include <random>

namespace syncgrads {

uint64_t DrawRandomNumber() {
  std::random_device device;
  uint64_t drawn = 0;
  while (drawn == 0) drawn = uint64_t{device()} << 32 | device();
  return drawn;
}

}  // namespace syncgrads
