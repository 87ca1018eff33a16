// A field of a parsed text-format message, with its place in the text: what a
// check needs to say where a wrong value is written.

#ifndef SYNCGRADS_WORKER_JOB_FIELD_H_
#define SYNCGRADS_WORKER_JOB_FIELD_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace syncgrads {

// A message, or a field of one, within a file. A value type; the file's messages
// and locations must outlive it.
class Field {
 public:
  // The whole file.
  Field(const std::string& path, const google::protobuf::Message& message,
        google::protobuf::TextFormat::ParseInfoTree& locations);

  // A field of this message; it must be one. `index` is for repeated fields. If
  // the field is not in the text, it has the place of what encloses it.
  Field Member(absl::string_view name, int index = -1) const;

  // "PATH:LINE:COLUMN: data.shards: " and then `problem`.
  absl::Status Error(absl::string_view problem) const;

 private:
  using Tree = google::protobuf::TextFormat::ParseInfoTree;

  Field() = default;

  const std::string* path_ = nullptr;
  // Null for fields that are no messages.
  const google::protobuf::Descriptor* descriptor_ = nullptr;
  // Null also for messages that are not in the text.
  Tree* tree_ = nullptr;
  // From 0, as protobuf counts.
  int line_ = 0;
  int column_ = 0;
  std::string name_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_FIELD_H_
