// A setting that autotune tries in the first steps.

#ifndef SYNCGRADS_CLIENT_TUNED_SETTING_H_
#define SYNCGRADS_CLIENT_TUNED_SETTING_H_

#include <functional>
#include <string>
#include <vector>

namespace syncgrads {

struct TunedSetting {
  // "connections"
  std::string name;
  // What people read behind a value: " to each server".
  std::string unit;
  // The usual one, which is in use, first. Each is tried once, however often it is there.
  std::vector<int> values;
  // From here on steps are made with this one of `values`. Called between two steps, on
  // the thread that ends them.
  std::function<void(int value)> use;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_CLIENT_TUNED_SETTING_H_
