#include "worker/pack/pack.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/base/file.h"
#include "worker/base/random.h"
#include "worker/data/readers/imagenet_reader.h"
#include "worker/data/readers/packed_images.h"
#include "worker/data/readers/tar.h"
#include "worker/storage/file_storage.h"

namespace syncgrads {
namespace {

namespace fs = std::filesystem;

// The end marker of an archive.
constexpr size_t kEndBytes = 2 * kTarBlock;
// A name has at most 100 bytes.
constexpr size_t kMaxStemBytes = 64;
constexpr size_t kMaxFileBytes = size_t{1} << 30;

bool IsJpeg(const fs::path& path) {
  const std::string extension = absl::AsciiStrToLower(path.extension().string());
  return extension == ".jpg" || extension == ".jpeg";
}

// Returns the directory's entries, sorted by name.
absl::StatusOr<std::vector<fs::path>> SortedEntries(const fs::path& directory) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("cannot list ", directory.string(), ": ", error.message()));
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// The key of an image in its archive: its number, so that keys differ, and the name of its file
// without characters that end a key.
std::string KeyOf(size_t number, const std::string& file) {
  std::string stem = fs::path(file).stem().string().substr(0, kMaxStemBytes);
  for (char& byte : stem) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(byte)) && byte != '-') byte = '_';
  }
  return absl::StrFormat("%08d-%s", number, stem);
}

// An archive that is being written.
class TarFile {
 public:
  explicit TarFile(std::string path)
      : path_(std::move(path)),
        partial_(path_ + ".partial"),
        out_(partial_, std::ios::binary | std::ios::trunc) {}
  ~TarFile() {
    if (!finished_) std::remove(partial_.c_str());
  }

  // Adds a file. Returns the position of its contents.
  uint64_t Add(const std::string& name, const std::string& contents) {
    out_ << TarHeader(name, contents.size()) << contents
         << std::string(TarPadding(contents.size()), '\0');
    const uint64_t at = bytes_ + kTarBlock;
    bytes_ = at + contents.size() + TarPadding(contents.size());
    return at;
  }

  // Ends the archive and gives it its name.
  absl::Status Finish() {
    out_ << std::string(kEndBytes, '\0');
    out_.close();
    if (!out_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot write ", partial_, ": the disk may be full"));
    }
    std::error_code error;
    fs::rename(partial_, path_, error);
    if (error) {
      return absl::InternalError(absl::StrCat("cannot rename to ", path_, ": ", error.message()));
    }
    finished_ = true;
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  const std::string partial_;
  std::ofstream out_;
  uint64_t bytes_ = 0;
  bool finished_ = false;
};

// Packs images `begin` to below `end`.
absl::Status PackOne(const std::vector<ImageToPack>& images, size_t begin, size_t end,
                     const std::string& path) {
  TarFile tar(path);
  std::string index(kIndexHeader);
  for (size_t i = begin; i < end; ++i) {
    const std::string key = KeyOf(i, images[i].file);
    SYNCGRADS_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(images[i].file, kMaxFileBytes));
    PackedImage image = {key + ".jpg", images[i].label, 0, bytes.size()};
    image.offset = tar.Add(image.name, bytes);
    tar.Add(key + ".cls", absl::StrCat(images[i].label));
    index += IndexLine(image);
  }
  // An index of an earlier archive of this name would be trusted.
  std::error_code error;
  fs::remove(path + ".csv", error);
  SYNCGRADS_RETURN_IF_ERROR(tar.Finish());
  return WriteFileAtomically(path + ".csv", {index});
}

}  // namespace

absl::StatusOr<ImagesToPack> ListFolder(const std::string& folder) {
  ImagesToPack list;
  SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<fs::path> entries, SortedEntries(folder));
  for (const fs::path& entry : entries) {
    std::error_code error;
    if (!fs::is_directory(entry, error)) continue;
    const auto label = static_cast<uint32_t>(list.classes.size());
    // An id without blanks, and a description.
    const std::string name = entry.filename().string();
    std::string id = name;
    std::replace_if(id.begin(), id.end(), absl::ascii_isspace, '_');
    list.classes.push_back(absl::StrCat(id, " ", name));
    SYNCGRADS_ASSIGN_OR_RETURN(const std::vector<fs::path> files, SortedEntries(entry));
    for (const fs::path& file : files) {
      if (IsJpeg(file)) list.images.push_back({file.string(), label});
    }
  }
  if (list.images.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder, " has no subfolder with images *.jpg or *.jpeg"));
  }
  return list;
}

absl::StatusOr<ImagesToPack> ListImageNetFolder(const std::string& folder,
                                                v1::ImageNetSource::Part part) {
  v1::ImageNetSource spec;
  spec.set_path(folder);
  spec.set_part(part);
  SYNCGRADS_ASSIGN_OR_RETURN(ImageNetList read, ListImageNet(FileStorage(), spec));
  ImagesToPack list;
  for (size_t i = 0; i < read.files.size(); ++i) {
    list.images.push_back({std::move(read.files[i]), read.labels[i]});
  }
  for (size_t i = 0; i < read.wnids.size(); ++i) {
    list.classes.push_back(absl::StrCat(read.wnids[i], " ", read.descriptions[i]));
  }
  return list;
}

absl::StatusOr<std::string> Pack(ImagesToPack images, const PackOptions& options) {
  RandomStream(options.seed, {}).Shuffle(images.images);
  const size_t count = images.images.size();
  if (count == 0) return absl::InvalidArgumentError("there is no image to pack");
  const size_t archives = (count + options.images_per_tar - 1) / options.images_per_tar;
  for (size_t i = 0; i < archives; ++i) {
    const size_t begin = i * options.images_per_tar;
    SYNCGRADS_RETURN_IF_ERROR(
        PackOne(images.images, begin, std::min(count, begin + options.images_per_tar),
                absl::StrFormat("%s/%s-%04d.tar", options.output, options.prefix, i)));
  }
  std::string mapping;
  for (const std::string& name : images.classes) absl::StrAppend(&mapping, name, "\n");
  SYNCGRADS_RETURN_IF_ERROR(
      WriteFileAtomically(options.output + "/LOC_synset_mapping.txt", {mapping}));
  return absl::StrFormat("%s-{0000..%04d}.tar", options.prefix, archives - 1);
}

}  // namespace syncgrads
