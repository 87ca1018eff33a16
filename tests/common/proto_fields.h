// Which fields of a protobuf message are set, for tests that convert messages with every field set.

#ifndef SYNCGRADS_TESTS_COMMON_PROTO_FIELDS_H_
#define SYNCGRADS_TESTS_COMMON_PROTO_FIELDS_H_

#include <google/protobuf/descriptor.h>
#include <google/protobuf/message.h>

#include <set>
#include <string>
#include <vector>

namespace syncgrads {

// Returns the message that is set in the oneof `kind` of a signal.
inline const google::protobuf::Message& KindIn(const google::protobuf::Message& signal) {
  const google::protobuf::Reflection& reflection = *signal.GetReflection();
  return reflection.GetMessage(
      signal,
      reflection.GetOneofFieldDescriptor(signal, signal.GetDescriptor()->FindOneofByName("kind")));
}

// Returns the number of kinds that the type of a signal has.
inline size_t KindsOf(const google::protobuf::Descriptor* signal) {
  return signal->FindOneofByName("kind")->field_count();
}

// Returns the names of the fields that are not set. A number that is 0 and a text that is empty
// are not set.
inline std::set<std::string> UnsetIn(const google::protobuf::Message& message) {
  std::set<std::string> unset;
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    unset.insert(message.GetDescriptor()->field(i)->name());
  }
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) unset.erase(field->name());
  return unset;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_COMMON_PROTO_FIELDS_H_
