#include "common/file_descriptor.h"

#include <unistd.h>

namespace syncgrads {

FileDescriptor::~FileDescriptor() {
  if (number_ >= 0) close(number_);
}

}  // namespace syncgrads
