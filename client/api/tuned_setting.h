// A setting that autotune tries in the first steps (ClientOptions::tuned_settings).

#ifndef SYNCGRADS_CLIENT_API_TUNED_SETTING_H_
#define SYNCGRADS_CLIENT_API_TUNED_SETTING_H_

#include <functional>
#include <string>
#include <vector>

namespace syncgrads {

struct TunedSetting {
  // The name of the setting, for the report: "connections".
  std::string name;
  // Text that follows a value in the report: " to each server".
  std::string unit;
  // The values to try. The first one is the default, which is in use. Duplicates are ignored.
  std::vector<int> values;
  // Makes the following steps use `value`, which is one of `values`. Called between two steps, on
  // the thread that ended the first of them.
  std::function<void(int value)> use;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_API_TUNED_SETTING_H_
