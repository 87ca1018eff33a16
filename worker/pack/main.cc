// ps-pack packs JPEG images into tar archives, which job files name in data.imagenet.tars.

#include <cstdint>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "common/rpc/build_info.h"
#include "common/status_macros.h"
#include "worker/pack/pack.h"

ABSL_FLAG(std::string, folder, "",
          "Pack the images of this folder: it has a subfolder for each class, and the classes are "
          "numbered in the order of their names.");
ABSL_FLAG(
    std::string, imagenet, "",
    "Pack ImageNet: a folder with LOC_synset_mapping.txt, LOC_train_solution.csv and ILSVRC/.");
ABSL_FLAG(std::string, part, "train", "With --imagenet: train or val.");
ABSL_FLAG(std::string, output, "",
          "The directory to which the archives are written; it must exist.");
ABSL_FLAG(std::string, prefix, "",
          "The archives are PREFIX-0000.tar, PREFIX-0001.tar, ...; default: --part, or \"part\".");
ABSL_FLAG(uint64_t, images_per_tar, 10'000, "The number of images in an archive.");
ABSL_FLAG(uint64_t, seed, 1, "Determines the order of the images.");

namespace syncgrads {
namespace {

absl::StatusOr<ImagesToPack> List() {
  const std::string folder = absl::GetFlag(FLAGS_folder), imagenet = absl::GetFlag(FLAGS_imagenet);
  if (folder.empty() == imagenet.empty()) {
    return absl::InvalidArgumentError("give either --folder or --imagenet");
  }
  if (!folder.empty()) return ListFolder(folder);
  const std::string part = absl::GetFlag(FLAGS_part);
  if (part == "train") return ListImageNetFolder(imagenet, v1::ImageNetSource::TRAIN);
  if (part == "val") return ListImageNetFolder(imagenet, v1::ImageNetSource::VALIDATION);
  return absl::InvalidArgumentError(absl::StrCat("--part is \"", part, "\", must be train or val"));
}

absl::Status Run() {
  PackOptions options;
  options.output = absl::GetFlag(FLAGS_output);
  if (options.output.empty()) return absl::InvalidArgumentError("--output is missing");
  options.prefix = absl::GetFlag(FLAGS_prefix);
  if (options.prefix.empty()) {
    options.prefix = absl::GetFlag(FLAGS_folder).empty() ? absl::GetFlag(FLAGS_part) : "part";
  }
  options.images_per_tar = absl::GetFlag(FLAGS_images_per_tar);
  if (options.images_per_tar == 0) {
    return absl::InvalidArgumentError("--images_per_tar is 0, must be at least 1");
  }
  options.seed = absl::GetFlag(FLAGS_seed);
  SYNCGRADS_ASSIGN_OR_RETURN(ImagesToPack images, List());
  const size_t count = images.images.size(), classes = images.classes.size();
  SYNCGRADS_ASSIGN_OR_RETURN(const std::string pattern, Pack(std::move(images), options));
  std::cout << count << " images of " << classes << " classes are in " << options.output
            << ":\n  imagenet { path: \"" << options.output << "\" tars: \"" << pattern << "\" }\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace syncgrads

int main(int argc, char** argv) {
  syncgrads::AnswerVersionAndHelp("ps-pack");
  absl::SetProgramUsageMessage(
      "Packs JPEG images into tar archives that ps-worker reads.\n"
      "  ps-pack --folder=DIR --output=DIR\n"
      "  ps-pack --imagenet=DIR [--part=val] --output=DIR\n"
      "\n"
      "Exit codes:\n"
      "  0    the archives are written\n"
      "  1    a flag is wrong, or a file cannot be read or written");
  const std::vector<char*> rest = absl::ParseCommandLine(argc, argv);
  if (rest.size() > 1) {
    std::cerr << "ps-pack: unknown argument \"" << rest[1] << "\"\n";
    return 1;
  }
  const absl::Status status = syncgrads::Run();
  if (status.ok()) return 0;
  std::cerr << "ps-pack: " << status.message() << "\n";
  return 1;
}
