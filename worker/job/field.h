// A field of a parsed text-format message, with its place in the text, for errors about its
// value.

#ifndef SYNCGRADS_WORKER_JOB_FIELD_H_
#define SYNCGRADS_WORKER_JOB_FIELD_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "google/protobuf/text_format.h"

namespace syncgrads {

// A message in a file, or a field of one. A value type. The file's messages and locations must
// outlive it.
class Field {
 public:
  // Represents the whole file.
  Field(const std::string& path, const google::protobuf::Message& message,
        google::protobuf::TextFormat::ParseInfoTree& locations);

  // Returns the field `name` of this message, which must have one. `index` is for repeated
  // fields; without it, a repeated field has the place of its first element. A field that is not in
  // the text has the place of the message around it.
  Field Member(absl::string_view name, int index = -1) const;

  // Returns InvalidArgument: "PATH:LINE:COLUMN: data.shards: ", followed by `problem`.
  absl::Status Error(absl::string_view problem) const;

 private:
  using Tree = google::protobuf::TextFormat::ParseInfoTree;

  Field() = default;

  const std::string* path_ = nullptr;
  // Null for a field that is not a message.
  const google::protobuf::Descriptor* descriptor_ = nullptr;
  // Null for a field that is not a message, and for a message that is not in the text.
  Tree* tree_ = nullptr;
  // Counted from 0, as protobuf does.
  int line_ = 0;
  int column_ = 0;
  std::string name_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_WORKER_JOB_FIELD_H_
