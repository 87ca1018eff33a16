#include "worker/team/gather_shards.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "worker/base/string_list.h"

namespace syncgrads {

absl::StatusOr<std::map<uint64_t, std::string>> GatherShards(
    absl::string_view name, const std::map<uint64_t, std::string>& ours, Team& team) {
  std::vector<std::string> own;  // a shard's number, then its bytes, and so on
  for (const auto& [number, bytes] : ours) {
    own.push_back(EncodeNumber(number));
    own.push_back(bytes);
  }
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<std::string> gathered,
                             team.Gather(name, EncodeStrings(own)));
  std::map<uint64_t, std::string> all;
  for (const std::string& bytes : gathered) {
    SYNCGRADS_ASSIGN_OR_RETURN(std::vector<std::string> theirs, DecodeStrings(bytes));
    for (size_t i = 0; i + 1 < theirs.size(); i += 2) {
      if (theirs[i].size() != sizeof(uint64_t)) {
        return absl::DataLossError(absl::StrCat("malformed ", name, " from another worker"));
      }
      all[DecodeNumber(theirs[i])] = std::move(theirs[i + 1]);
    }
  }
  return all;
}

}  // namespace syncgrads
