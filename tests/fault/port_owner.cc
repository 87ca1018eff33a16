#include "tests/fault/port_owner.h"

#include <dirent.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace syncgrads::fault {
namespace {

// Parses an address such as "0100007F:1F90"; the part after the colon is the port.
uint16_t PortOf(absl::string_view address) {
  uint32_t port = 0;
  const size_t colon = address.rfind(':');
  if (!absl::SimpleHexAtoi(address.substr(colon + 1), &port)) return 0;
  return static_cast<uint16_t>(port);
}

// Returns "socket:[12345]", or an empty string if there is no such connection.
std::string FindSocket(const char* table, uint16_t port, uint16_t remote) {
  std::ifstream file(table);
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> fields = absl::StrSplit(line, ' ', absl::SkipEmpty());
    if (fields.size() < 10 || PortOf(fields[1]) != port || PortOf(fields[2]) != remote) continue;
    return absl::StrCat("socket:[", fields[9], "]");
  }
  return "";
}

bool Has(pid_t process, const std::string& socket) {
  const std::string folder = absl::StrCat("/proc/", process, "/fd");
  DIR* directory = opendir(folder.c_str());
  if (directory == nullptr) return false;
  bool found = false;
  while (const dirent* entry = readdir(directory)) {
    char target[64];
    const ssize_t length =
        readlink(absl::StrCat(folder, "/", entry->d_name).c_str(), target, sizeof(target));
    if (length > 0 && socket == absl::string_view(target, static_cast<size_t>(length)))
      found = true;
  }
  closedir(directory);
  return found;
}

}  // namespace

int FindOwner(uint16_t port, uint16_t remote, const std::vector<pid_t>& processes) {
  std::string socket = FindSocket("/proc/net/tcp", port, remote);
  if (socket.empty()) socket = FindSocket("/proc/net/tcp6", port, remote);
  if (socket.empty()) return -1;
  for (size_t i = 0; i < processes.size(); ++i) {
    if (processes[i] > 0 && Has(processes[i], socket)) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace syncgrads::fault
