// What `psctl status` and `psctl top` print.

#ifndef SYNCGRADS_CLIENT_PSCTL_STATUS_TEXT_H_
#define SYNCGRADS_CLIENT_PSCTL_STATUS_TEXT_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/psctl/cluster_query.h"

namespace syncgrads::client {

// Returns, for example, "1.5 MiB".
std::string BytesText(uint64_t bytes);
// Returns the duration with two or three digits and one unit, for example "2.5 ms".
std::string DurationText(absl::Duration duration);

// Prints the servers and their jobs, with the workers in rank order. Rates and lags are those since
// `before`, which may be null.
void PrintStatus(const std::vector<Answer>& now, const std::vector<Answer>* before,
                 std::ostream& out);
// Prints the same, with the slowest workers first, and marks the first one if it is slow.
void PrintTop(const std::vector<Answer>& now, const std::vector<Answer>* before, std::ostream& out);

}  // namespace syncgrads::client

#endif  // SYNCGRADS_CLIENT_PSCTL_STATUS_TEXT_H_
