#include "common/group/policy.h"

#include "absl/strings/str_cat.h"

namespace syncgrads {
namespace {

// Maximum of Quorum::kept. Each kept result takes the memory of a whole result.
constexpr uint32_t kMostKept = 1024;

constexpr absl::Duration kLongestGrace = absl::Hours(1);

struct Namer {
  std::string operator()(const Sync&) const { return "sync"; }
  std::string operator()(const First&) const { return "first"; }
  std::string operator()(const Quorum& quorum) const {
    return absl::StrCat("quorum(least=", quorum.least,
                        ", grace=", absl::FormatDuration(quorum.grace), ", kept=", quorum.kept,
                        ")");
  }
  std::string operator()(const Staleness& staleness) const {
    return absl::StrCat(
        "staleness(bound=",
        staleness.bound.has_value() ? absl::StrCat(*staleness.bound) : std::string("none"),
        ", scales_rate=", staleness.scales_rate ? 1 : 0, ")");
  }
};

}  // namespace

std::string ToString(const Policy& policy) { return std::visit(Namer(), policy); }

absl::Status Validate(const Policy& policy) {
  const auto* quorum = std::get_if<Quorum>(&policy);
  if (quorum == nullptr) return absl::OkStatus();
  if (quorum->least == 0) {
    return absl::InvalidArgumentError("least is 0 in a quorum, must be at least 1");
  }
  if (quorum->grace < absl::ZeroDuration() || quorum->grace > kLongestGrace) {
    return absl::InvalidArgumentError(absl::StrCat("grace is ", absl::FormatDuration(quorum->grace),
                                                   " in a quorum, must be from 0 to ",
                                                   absl::FormatDuration(kLongestGrace)));
  }
  if (quorum->kept < 2 || quorum->kept > kMostKept) {
    return absl::InvalidArgumentError(
        absl::StrCat("kept is ", quorum->kept, " in a quorum, must be from 2 to ", kMostKept));
  }
  return absl::OkStatus();
}

}  // namespace syncgrads
