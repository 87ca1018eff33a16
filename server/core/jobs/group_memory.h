// Allocates the memory of groups' results before the groups are registered.

#ifndef SYNCGRADS_SERVER_CORE_JOBS_GROUP_MEMORY_H_
#define SYNCGRADS_SERVER_CORE_JOBS_GROUP_MEMORY_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "common/mutex.h"
#include "common/shm/region.h"
#include "server/core/jobs/group_results.h"
#include "server/core/plan/group_preparation.h"

namespace syncgrads::server {

// Small memory is allocated on the thread that calls Prepare. Large memory is allocated on a thread
// of this object, for one group after the other; AllocatePages uses further threads.
//
// Jobs owns it. Thread-safe; the callbacks are called without its lock.
class GroupMemory {
 public:
  using Make = std::function<absl::StatusOr<GroupResults>(const AllocationProgress&)>;
  using Report = std::function<void(const GroupPrepared&)>;
  using Discard = std::function<void(uint64_t key)>;

  // `report` is called with the progress and with the end of each preparation. `discard` is called
  // for memory that was allocated and will not be used. Both are called on any thread, without
  // locks.
  GroupMemory(Report report, Discard discard);
  // Waits for the allocation that is running. Drops those that are queued.
  ~GroupMemory();

  // Allocates `wanted` bytes for a preparation by calling `make`. Idempotent: for a preparation
  // that is known, reports its end if it is done, and otherwise does nothing, since its end will be
  // reported.
  void Prepare(const GroupPreparation& preparation, uint64_t wanted, Make make);
  // Removes and returns the memory of a preparation that is done; nullopt if there is none, or if
  // it failed.
  std::optional<GroupResults> Take(uint64_t key);
  // Frees the memory of a group that will not be registered; if it is being allocated, once that is
  // done.
  void Forget(uint64_t key);
  // Calls Forget for all preparations of a job.
  void ForgetJob(const std::string& job, Generation generation);

 private:
  struct Entry {
    GroupPrepared state;
    Make make;  // null once called; only the allocating thread uses it
    absl::StatusOr<GroupResults> results = GroupResults();
  };

  // Starts the thread if it is not running. Returns false if the system has no thread for it; the
  // memory is then allocated on the caller's thread.
  bool HasThreadLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Work();
  // Allocates the memory of an entry and reports its end; or discards the memory, if Forget was
  // called meanwhile.
  void Allocate(Entry& entry) ABSL_LOCKS_EXCLUDED(mutex_);

  const Report report_;
  const Discard discard_;

  Mutex mutex_;
  CondVar changed_;
  std::map<uint64_t, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Entry>> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  // Started by the first large preparation.
  std::thread thread_;
};

}  // namespace syncgrads::server

#endif  // SYNCGRADS_SERVER_CORE_JOBS_GROUP_MEMORY_H_
