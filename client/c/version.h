// The version of the library. The build writes its definition from the file VERSION.

#ifndef SYNCGRADS_CLIENT_C_VERSION_H_
#define SYNCGRADS_CLIENT_C_VERSION_H_

namespace syncgrads::c {

extern const char kVersion[];

}  // namespace syncgrads::c

#endif  // SYNCGRADS_CLIENT_C_VERSION_H_
