// A reader of one's own: the text format of LIBSVM and SVMlight.
//
//   +1 1:0.5 3:-2     a row of class "+1"; features that are not given are 0
//   -1 2:1e3  # why   what follows a # is no matter

#ifndef SYNCGRADS_EXAMPLES_OWN_READER_LIBSVM_H_
#define SYNCGRADS_EXAMPLES_OWN_READER_LIBSVM_H_

#include "absl/status/statusor.h"
#include "worker/data/readers/custom_readers.h"

namespace syncgrads {

// Job files say
//   data { custom { kind: "libsvm" settings { key: "path" value: "train.txt" }
//                                  settings { key: "features" value: "123" } } }
// Features are numbered from 1.
//
// InvalidArgument, with PATH:LINE and what is wrong with it; as Storage::Read.
absl::StatusOr<Table> ReadLibsvm(const CustomReaderOptions& options);

}  // namespace syncgrads

#endif  // SYNCGRADS_EXAMPLES_OWN_READER_LIBSVM_H_
