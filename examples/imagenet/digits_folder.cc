// Makes a small folder in ImageNet's layout out of the digits:
//
//   digits_folder DIGITS.csv.gz FOLDER
//
// Every fifth image is in the validation part. Images are enlarged to 48 pixels,
// in JPEG files; those of every third row are grey, the others coloured.

#include <turbojpeg.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/status_macros.h"
#include "worker/base/file.h"
#include "worker/data/readers/table_reader.h"
#include "worker/storage/file_storage.h"

namespace syncgrads {
namespace {

constexpr int kSide = 8;      // of a digit
constexpr int kEnlarged = 6;  // pixels for each
constexpr int kQuality = 95;
constexpr double kWhite = 16;  // the largest number in the table
constexpr const char* kNames[] = {"zero", "one", "two",   "three", "four",
                                  "five", "six", "seven", "eight", "nine"};

std::string WnidOf(int digit) { return absl::StrFormat("n%08d", digit); }

absl::StatusOr<std::string> Encode(absl::Span<const double> digit, bool grey) {
  constexpr int kPixels = kSide * kEnlarged;
  std::vector<unsigned char> pixels;
  for (int y = 0; y < kPixels; ++y) {
    for (int x = 0; x < kPixels; ++x) {
      const double number = digit[y / kEnlarged * kSide + x / kEnlarged];
      pixels.push_back(static_cast<unsigned char>(255 * std::min(number, kWhite) / kWhite));
    }
  }
  if (!grey) {
    // Light on a dark blue ground.
    std::vector<unsigned char> coloured;
    for (const unsigned char value : pixels) {
      coloured.insert(coloured.end(),
                      {value, value, static_cast<unsigned char>(std::max<int>(value, 60))});
    }
    pixels = std::move(coloured);
  }
  void* encoder = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT: the library's type
  const int failed = tjCompress2(encoder, pixels.data(), kPixels, /*pitch=*/0, kPixels,
                                 grey ? TJPF_GRAY : TJPF_RGB, &bytes, &size,
                                 grey ? TJSAMP_GRAY : TJSAMP_420, kQuality, /*flags=*/0);
  const std::string problem = failed == 0 ? "" : tjGetErrorStr2(encoder);
  const std::string jpeg = failed == 0 ? std::string(bytes, bytes + size) : "";
  tjFree(bytes);
  tjDestroy(encoder);
  if (failed != 0) return absl::InternalError(absl::StrCat("libjpeg-turbo: ", problem));
  return jpeg;
}

absl::Status MakeFolder(const std::string& digits, const std::string& folder) {
  TableColumns columns;
  columns.target = "digit";
  columns.target_kind = TargetKind::kNumber;
  SYNCGRADS_ASSIGN_OR_RETURN(const Table table, ReadTable(FileStorage(), digits, ',', columns));
  const std::string images = folder + "/ILSVRC/Data/CLS-LOC/";
  std::string mapping, train = "ImageId,PredictionString\n", validation = train;
  std::error_code error;
  std::filesystem::create_directories(images + "val", error);
  for (int digit = 0; digit < 10; ++digit) {
    absl::StrAppend(&mapping, WnidOf(digit), " ", kNames[digit], "\n");
    std::filesystem::create_directories(images + "train/" + WnidOf(digit), error);
  }
  if (error)
    return absl::InternalError(absl::StrCat("cannot make ", images, ": ", error.message()));
  for (size_t row = 0; row < table.rows; ++row) {
    const std::string wnid = WnidOf(static_cast<int>(table.targets[row]));
    const bool is_validation = row % 5 == 0;
    const std::string id = is_validation ? absl::StrFormat("ILSVRC2012_val_%08d", row)
                                         : absl::StrFormat("%s_%d", wnid, row);
    SYNCGRADS_ASSIGN_OR_RETURN(const std::string jpeg,
                               Encode(table.FeaturesOf(row), /*grey=*/row % 3 == 0));
    const std::string path =
        absl::StrCat(images, is_validation ? "val/" : "train/" + wnid + "/", id, ".JPEG");
    SYNCGRADS_RETURN_IF_ERROR(WriteFileAtomically(path, {jpeg}));
    absl::StrAppend(is_validation ? &validation : &train, id, ",", wnid, " 0 0 47 47 \n");
  }
  SYNCGRADS_RETURN_IF_ERROR(WriteFileAtomically(folder + "/LOC_synset_mapping.txt", {mapping}));
  SYNCGRADS_RETURN_IF_ERROR(WriteFileAtomically(folder + "/LOC_train_solution.csv", {train}));
  return WriteFileAtomically(folder + "/LOC_val_solution.csv", {validation});
}

}  // namespace
}  // namespace syncgrads

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: digits_folder DIGITS.csv.gz FOLDER\n";
    return 2;
  }
  const absl::Status status = syncgrads::MakeFolder(argv[1], argv[2]);
  if (status.ok()) return 0;
  std::cerr << "digits_folder: " << status << "\n";
  return 1;
}
