#include "worker/train/make_reader.h"

#include "worker/train/image_batch_reader.h"
#include "worker/train/served_batch_reader.h"

namespace syncgrads {

template <typename T>
std::unique_ptr<BatchReader<T>> MakeReader(const v1::JobFile& job, const v1::DataSpec& source,
                                           const DataSet& data, uint32_t world_size,
                                           const DeviceChoice& device) {
  if (data.served != nullptr) return std::make_unique<ServedBatchReader<T>>(data);
  const std::shared_ptr<const ImageSource>& images = data.data.shards.front().table.images;
  if (images == nullptr || !(images->is_slow() || device.accelerator.has_value())) return nullptr;
  ImageBatchReaderOptions options;
  options.threads = ReadersOf(job, source, world_size, device);
  const uint32_t timeout_s = source.imagenet().timeout_s();
  if (timeout_s != 0) options.timeout = absl::Seconds(timeout_s);
  return std::make_unique<ImageBatchReader<T>>(data, options);
}

size_t BatchesAhead(const v1::DataSpec& source) {
  constexpr size_t kUsual = 2;
  return source.imagenet().ahead() == 0 ? kUsual : source.imagenet().ahead();
}

template std::unique_ptr<BatchReader<float>> MakeReader(const v1::JobFile&, const v1::DataSpec&,
                                                        const DataSet&, uint32_t,
                                                        const DeviceChoice&);
template std::unique_ptr<BatchReader<double>> MakeReader(const v1::JobFile&, const v1::DataSpec&,
                                                         const DataSet&, uint32_t,
                                                         const DeviceChoice&);

}  // namespace syncgrads
