// Reads the fields of a parsed JSON object.

#ifndef SYNCGRADS_TESTS_TESTING_JSON_FIELDS_H_
#define SYNCGRADS_TESTS_TESTING_JSON_FIELDS_H_

#include <string>

#include "google/protobuf/struct.pb.h"

namespace syncgrads::testing {

// Returns a value that is not set if there is no such field.
inline const google::protobuf::Value& Field(const google::protobuf::Struct& object,
                                            const std::string& name) {
  static const google::protobuf::Value none;
  const auto found = object.fields().find(name);
  return found == object.fields().end() ? none : found->second;
}

inline std::string Text(const google::protobuf::Struct& object, const std::string& name) {
  return Field(object, name).string_value();
}

inline double Number(const google::protobuf::Struct& object, const std::string& name) {
  return Field(object, name).number_value();
}

}  // namespace syncgrads::testing

#endif  // SYNCGRADS_TESTS_TESTING_JSON_FIELDS_H_
