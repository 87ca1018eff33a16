// A manifest in which every field is set, for tests.

#ifndef SYNCGRADS_TESTS_WORKER_CHECKPOINT_EXAMPLE_MANIFEST_H_
#define SYNCGRADS_TESTS_WORKER_CHECKPOINT_EXAMPLE_MANIFEST_H_

#include <cstdint>
#include <limits>

#include "worker/checkpoint/manifest.h"

namespace syncgrads {

inline Manifest ExampleManifest() {
  Manifest manifest;
  manifest.job = "iris \"two\"\n";
  manifest.step = 120;
  manifest.dtype = "F32";
  manifest.place = "SERVERS";
  manifest.optimizer = "adam { }";
  manifest.seed = std::numeric_limits<uint64_t>::max();
  manifest.workers = 3;
  manifest.shards = 6;
  manifest.partition = "PERMUTED";
  manifest.learning_rate_factor = 0.1;
  manifest.data = {{3, 8, 100, 4}, {2, 8, 20}};
  manifest.evaluation = {{"loss", 0.1}, {"accuracy", 1.0}};
  manifest.score = -0.1;
  manifest.best = "LOSS";
  manifest.stopping_metric = "TOP1";
  manifest.written_at = "2026-01-02T03:04:05Z";
  manifest.files = {{"model.safetensors", 1234, 0x0123456789abcdef}, {"empty", 0, 1}};
  return manifest;
}

}  // namespace syncgrads

#endif  // SYNCGRADS_TESTS_WORKER_CHECKPOINT_EXAMPLE_MANIFEST_H_
