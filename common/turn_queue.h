// A queue in which several owners take turns.

#ifndef SYNCGRADS_COMMON_TURN_QUEUE_H_
#define SYNCGRADS_COMMON_TURN_QUEUE_H_

#include <deque>
#include <map>
#include <string>
#include <utility>

namespace syncgrads {

// An owner that queues much delays an item of another one by at most one item of each owner. The
// items of one owner stay in their order. Not thread-safe.
template <typename T>
class TurnQueue {
 public:
  bool empty() const { return turns_.empty(); }

  void Push(const std::string& owner, T item) {
    const auto [found, is_new] = items_.try_emplace(owner);
    if (is_new) turns_.push_back(owner);
    found->second.push_back(std::move(item));
  }

  // Removes the next item. The queue must not be empty.
  T Pop() {
    const auto found = items_.find(turns_.front());
    turns_.pop_front();
    std::deque<T>& queue = found->second;
    T item = std::move(queue.front());
    queue.pop_front();
    if (queue.empty()) {
      items_.erase(found);
    } else {
      turns_.push_back(found->first);
    }
    return item;
  }

 private:
  // By the owner. None is empty.
  std::map<std::string, std::deque<T>> items_;
  // The owners that have items, in the order of their turns.
  std::deque<std::string> turns_;
};

}  // namespace syncgrads

#endif  // SYNCGRADS_COMMON_TURN_QUEUE_H_
