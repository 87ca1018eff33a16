#include "common/shm/host.h"

#include <fstream>

namespace syncgrads {

std::string HostId() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

}  // namespace syncgrads
