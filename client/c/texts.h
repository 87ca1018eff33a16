// The descriptions that syncgrads.h takes as text: the options of a client, groups, and figures.

#ifndef SYNCGRADS_CLIENT_C_TEXTS_H_
#define SYNCGRADS_CLIENT_C_TEXTS_H_

#include "absl/status/statusor.h"
#include "client/api/client_options.h"
#include "common/group/group.h"
#include "common/signals/figures.h"

namespace syncgrads::c {

// All take a text that may be null, and convert what it describes.
//
// Errors:
//   InvalidArgument  the text is null or cannot be parsed (the message has line and column), or the
//                    message that it describes cannot be converted

// The text of a v1::ClientOptions.
absl::StatusOr<ClientOptions> ParseOptions(const char* text);
// The text of a v1::GroupSpec.
absl::StatusOr<GroupSpec> ParseGroup(const char* text);
// The text of a v1::TrainingFigures.
absl::StatusOr<TrainingFigures> ParseFigures(const char* text);

}  // namespace syncgrads::c

#endif  // SYNCGRADS_CLIENT_C_TEXTS_H_
