// ImageNet's files, and the JPEG images in them.

#include "worker/data/readers/imagenet_reader.h"

#include <gtest/gtest.h>
#include <turbojpeg.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/data/images/crop.h"
#include "worker/data/images/jpeg.h"
#include "worker/data/shards.h"
#include "worker/pack/pack.h"
#include "worker/storage/file_storage.h"

namespace syncgrads {
namespace {

using absl::StatusCode;

struct Colour {
  int red, green, blue;
};

// `pixels` has the numbers of each pixel that `format` says, line by line.
std::string Encode(int width, int height, TJPF format, TJSAMP sampling,
                   const std::vector<unsigned char>& pixels) {
  void* encoder = tjInitCompress();
  unsigned char* bytes = nullptr;
  unsigned long size = 0;  // NOLINT: the library's type
  EXPECT_EQ(
      tjCompress2(encoder, pixels.data(), width, 0, height, format, &bytes, &size, sampling, 98, 0),
      0);
  const std::string jpeg(bytes, bytes + size);
  tjFree(bytes);
  tjDestroy(encoder);
  return jpeg;
}

// Encodes an image in which the pixel at (x, y) is colour(x, y).
template <typename Function>
std::string MakeJpeg(int width, int height, bool grey, Function colour,
                     TJSAMP sampling = TJSAMP_444) {
  std::vector<unsigned char> pixels;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const Colour one = colour(x, y);
      pixels.push_back(static_cast<unsigned char>(one.red));
      if (grey) continue;
      pixels.push_back(static_cast<unsigned char>(one.green));
      pixels.push_back(static_cast<unsigned char>(one.blue));
    }
  }
  return grey ? Encode(width, height, TJPF_GRAY, TJSAMP_GRAY, pixels)
              : Encode(width, height, TJPF_RGB, sampling, pixels);
}

// Makes an image in which red grows to the right and green grows downwards.
std::string Gradient(int width, int height) {
  return MakeJpeg(width, height, /*grey=*/false, [&](int x, int y) {
    return Colour{255 * x / (width - 1), 255 * y / (height - 1), 100};
  });
}

std::vector<float> Decode(const std::string& jpeg, const ScaledCrop& crop) {
  std::vector<unsigned char> bytes(static_cast<size_t>(3 * crop.size * crop.size));
  SYNCGRADS_EXPECT_OK(DecodeJpeg(jpeg, crop.size, crop, absl::MakeSpan(bytes)));
  std::vector<float> pixels(bytes.size());
  std::transform(bytes.begin(), bytes.end(), pixels.begin(), FromByte);
  return pixels;
}

float At(const std::vector<float>& pixels, const ScaledCrop& crop, int64_t x, int64_t y,
         int channel) {
  return pixels[static_cast<size_t>((y * crop.size + x) * 3 + channel)];
}

TEST(JpegTest, TheCentreOfAScaledImageIsCutOut) {
  ScaledCrop crop;
  crop.smallest_side = 64;
  crop.size = 32;
  // The image is decoded at its own size, decoded at a reduced size, and enlarged.
  for (const int height : {64, 300, 40}) {
    const int width = 2 * height;
    const std::vector<float> pixels = Decode(Gradient(width, height), crop);
    // After scaling to 128x64, the crop is the square from (48, 16) on.
    EXPECT_NEAR(At(pixels, crop, 0, 0, 0), 48.5 / 128, 0.02) << height;
    EXPECT_NEAR(At(pixels, crop, 31, 0, 0), 79.5 / 128, 0.02) << height;
    EXPECT_NEAR(At(pixels, crop, 0, 0, 1), 16.5 / 64, 0.02) << height;
    EXPECT_NEAR(At(pixels, crop, 0, 31, 1), 47.5 / 64, 0.02) << height;
    EXPECT_NEAR(At(pixels, crop, 9, 9, 2), 100.0 / 255, 0.02) << height;
  }
}

TEST(JpegTest, ACropIsAtItsPosition) {
  ScaledCrop crop;
  crop.smallest_side = 64;
  crop.size = 32;
  crop.left = 1;
  crop.top = 0;
  const std::vector<float> pixels = Decode(Gradient(64, 64), crop);
  EXPECT_NEAR(At(pixels, crop, 0, 0, 0), 32.0 / 64, 0.02);
  EXPECT_NEAR(At(pixels, crop, 0, 0, 1), 0, 0.02);
}

// Computes a crop of an image that has been decoded completely and at its own size.
std::vector<float> Reference(const std::string& jpeg, int width, int height,
                             const ScaledCrop& crop) {
  std::vector<unsigned char> whole(static_cast<size_t>(width) * height * 3);
  void* decoder = tjInitDecompress();
  EXPECT_EQ(tjDecompress2(decoder, reinterpret_cast<const unsigned char*>(jpeg.data()), jpeg.size(),
                          whole.data(), width, 0, height, TJPF_RGB, 0),
            0);
  tjDestroy(decoder);
  const double ratio = static_cast<double>(crop.smallest_side) / std::min(width, height);
  const auto place = [&](int64_t i, int given, double share, double& at) {
    const double scaled = std::round(given * ratio);
    const double begin = std::floor((scaled - static_cast<double>(crop.size)) * share);
    at =
        std::clamp((begin + static_cast<double>(i) + 0.5) * given / scaled - 0.5, 0.0, given - 1.0);
  };
  std::vector<float> pixels;
  for (int64_t y = 0; y < crop.size; ++y) {
    for (int64_t x = 0; x < crop.size; ++x) {
      double down, across;
      place(y, height, crop.top, down);
      place(x, width, crop.left, across);
      const int top = static_cast<int>(down), left = static_cast<int>(across);
      const auto at = [&](int line, int column, int channel) -> double {
        return whole[static_cast<size_t>(
            (std::min(line, height - 1) * width + std::min(column, width - 1)) * 3 + channel)];
      };
      for (int c = 0; c < 3; ++c) {
        const double upper =
            at(top, left, c) * (1 - across + left) + at(top, left + 1, c) * (across - left);
        const double lower =
            at(top + 1, left, c) * (1 - across + left) + at(top + 1, left + 1, c) * (across - left);
        pixels.push_back(
            static_cast<float>((upper * (1 - down + top) + lower * (down - top)) / 255));
      }
    }
  }
  return pixels;
}

TEST(JpegTest, ACropIsWhatTheWholeImageHasThere) {
  constexpr int kWidth = 173, kHeight = 131;
  const std::string jpeg = MakeJpeg(
      kWidth, kHeight, /*grey=*/false,
      [](int x, int y) {
        return Colour{x * 255 / kWidth, (x * y / 7) % 200, (y * 13) % 256};
      },
      TJSAMP_420);
  ScaledCrop crop;
  crop.smallest_side = 100;
  crop.size = 48;
  for (const double left : {0.0, 0.3, 0.5, 1.0}) {
    for (const double top : {0.0, 0.7, 1.0}) {
      crop.left = left;
      crop.top = top;
      const std::vector<float> pixels = Decode(jpeg, crop);
      const std::vector<float> expected = Reference(jpeg, kWidth, kHeight, crop);
      ASSERT_EQ(pixels.size(), expected.size());
      for (size_t i = 0; i < pixels.size(); ++i) {
        // Pixels are rounded to the nearest byte.
        ASSERT_NEAR(pixels[i], expected[i], 0.5 / 255 + 1e-5) << left << " " << top << " " << i;
      }
    }
  }
}

TEST(JpegTest, DamagedBytesAreAnErrorOrAnotherImage) {
  const std::string jpeg = Gradient(64, 48);
  ScaledCrop crop;
  crop.smallest_side = crop.size = 32;
  std::vector<unsigned char> pixels(3 * 32 * 32);
  std::minstd_rand random(1);
  for (int i = 0; i < 2000; ++i) {
    std::string damaged = jpeg;
    for (int j = 0; j < 3; ++j) damaged[random() % damaged.size()] = static_cast<char>(random());
    const absl::Status status = DecodeJpeg(damaged, crop.size, crop, absl::MakeSpan(pixels));
    EXPECT_TRUE(status.ok() || absl::IsDataLoss(status)) << status;
  }
}

TEST(JpegTest, AHeaderCannotAskForAnyMemory) {
  // The start of an image, a progressive frame of 32304 x 11264 pixels, and the start of a scan.
  constexpr unsigned char kHeader[] = {0xff, 0xd8, 0xff, 0xc2, 0x00, 0x11, 0x08, 0x2c,
                                       0x00, 0x7e, 0x30, 0x03, 0x01, 0x11, 0x00, 0x02,
                                       0x11, 0x01, 0x03, 0x11, 0x01, 0xff, 0xda, 0x00,
                                       0x08, 0x01, 0x02, 0x00, 0x00, 0x00, 0x00};
  ScaledCrop crop;
  crop.smallest_side = crop.size = 32;
  std::vector<unsigned char> pixels(3 * 32 * 32);
  const absl::Status status = DecodeJpeg({reinterpret_cast<const char*>(kHeader), sizeof(kHeader)},
                                         32, crop, absl::MakeSpan(pixels));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.message(), ::testing::HasSubstr("progressive and has 32304x11264 pixels"));
}

TEST(JpegTest, GreyImagesHaveThreeEqualChannels) {
  ScaledCrop crop;
  crop.smallest_side = 16;
  crop.size = 16;
  const std::vector<float> pixels = Decode(MakeJpeg(16, 16, /*grey=*/true,
                                                    [](int x, int) {
                                                      return Colour{16 * x, 0, 0};
                                                    }),
                                           crop);
  for (int64_t x = 0; x < 16; ++x) {
    EXPECT_NEAR(At(pixels, crop, x, 3, 0), 16.0 * x / 255, 0.02);
    EXPECT_EQ(At(pixels, crop, x, 3, 0), At(pixels, crop, x, 3, 2));
  }
}

// The encoder marks the image as Adobe's programs do: 255 is no ink.
TEST(JpegTest, ImagesOfFourInksBecomeRedGreenAndBlue) {
  constexpr int kSide = 16;
  std::vector<unsigned char> inks;
  for (int i = 0; i < kSide * kSide; ++i) {
    const int x = i % kSide;
    inks.insert(inks.end(), {static_cast<unsigned char>(x * 15), 200, 100,
                             static_cast<unsigned char>(i < kSide * kSide / 2 ? 255 : 128)});
  }
  ScaledCrop crop;
  crop.smallest_side = crop.size = kSide;
  const std::vector<float> pixels = Decode(Encode(kSide, kSide, TJPF_CMYK, TJSAMP_444, inks), crop);
  for (int x = 0; x < kSide; ++x) {
    EXPECT_NEAR(At(pixels, crop, x, 3, 0), x * 15 / 255.0, 0.02);
    EXPECT_NEAR(At(pixels, crop, x, 3, 1), 200 / 255.0, 0.02);
    EXPECT_NEAR(At(pixels, crop, x, 3, 2), 100 / 255.0, 0.02);
    EXPECT_NEAR(At(pixels, crop, x, 12, 1), 200 / 255.0 * 128 / 255, 0.02);
  }
}

TEST(JpegTest, WhatIsCutShortAtAnyByteIsDamaged) {
  const std::string jpeg = Gradient(40, 40);
  ScaledCrop crop;
  crop.smallest_side = crop.size = 32;
  std::vector<unsigned char> pixels(3 * 32 * 32);
  for (size_t size = 0; size + 2 < jpeg.size(); size += 7) {
    EXPECT_EQ(DecodeJpeg(jpeg.substr(0, size), crop.size, crop, absl::MakeSpan(pixels)).code(),
              StatusCode::kDataLoss)
        << size;
  }
  EXPECT_EQ(DecodeJpeg("no image", crop.size, crop, absl::MakeSpan(pixels)).code(),
            StatusCode::kDataLoss);
}

class ImageNetTest : public testing::Test {
 protected:
  ImageNetTest() {
    directory_.Write("LOC_synset_mapping.txt",
                     "n01440764 tench, Tinca tinca\nn01443537 goldfish\nn02006656 spoonbill\n");
    WriteTable("train",
               "a_1,n02006656 1 2 3 4 \n"
               "a_2,n01440764 1 2 3 4 n01440764 5 6 7 8\n"
               "a_3,n01440764 1 2 3 4 n01443537 5 6 7 8\n"  // two classes
               "a_4,n01443537 1 2 3 4\n");
    WriteTable("val", "v_1,n01443537 1 2 3 4\n");
    directory_.Write("ILSVRC/Data/CLS-LOC/train/n02006656/a_1.JPEG", Gradient(30, 20));
    directory_.Write("ILSVRC/Data/CLS-LOC/val/v_1.JPEG", Gradient(30, 20));
    directory_.Write("ILSVRC/Data/CLS-LOC/train/n01440764/a_2.JPEG",
                     Gradient(30, 20).substr(0, 500));
    spec_.set_smallest_side(16);
    spec_.set_size(12);
    spec_.set_path(directory_.path());
  }

  void WriteTable(const std::string& part, const std::string& rows) {
    directory_.Write("LOC_" + part + "_solution.csv", "ImageId,PredictionString\n" + rows);
  }

  absl::StatusOr<Table> Read(TargetKind kind = TargetKind::kClass) {
    return ReadImageNet(std::make_shared<FileStorage>(), spec_, kind);
  }

  TemporaryDirectory directory_;
  v1::ImageNetSource spec_;
};

TEST_F(ImageNetTest, ClassesAreTheLinesOfTheMappingAndImagesOfSeveralAreLeftOut) {
  const auto table = Read();
  SYNCGRADS_ASSERT_OK(table);
  ASSERT_EQ(table->rows, 3u);
  const std::vector<std::string> expected = {"2", "0", "1"};
  for (size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(table->classes[static_cast<size_t>(table->targets[row])].name, expected[row]);
  }
  EXPECT_EQ(table->images->NameOf(0),
            directory_.path() + "/ILSVRC/Data/CLS-LOC/train/n02006656/a_1.JPEG");
  spec_.set_part(v1::ImageNetSource::VALIDATION);
  const auto validation = Read();
  SYNCGRADS_ASSERT_OK(validation);
  ASSERT_EQ(validation->rows, 1u);
  EXPECT_EQ(validation->images->NameOf(0), directory_.path() + "/ILSVRC/Data/CLS-LOC/val/v_1.JPEG");
}

TEST_F(ImageNetTest, OnlyTheClassesThatAreAskedForAreThereUnderTheirNumbers) {
  spec_.add_classes("n02006656");
  const auto table = Read();
  SYNCGRADS_ASSERT_OK(table);
  ASSERT_EQ(table->rows, 1u);
  EXPECT_EQ(table->classes[0].name, "2");
  // The images of the other classes come first.
  spec_.clear_classes();
  spec_.add_classes("n01443537");
  const auto last = Read();
  SYNCGRADS_ASSERT_OK(last);
  ASSERT_EQ(last->rows, 1u);
  EXPECT_EQ(last->classes[0].name, "1");
  EXPECT_EQ(last->images->NameOf(0),
            directory_.path() + "/ILSVRC/Data/CLS-LOC/train/n01443537/a_4.JPEG");
  spec_.add_classes("n09999999");
  ExpectError(Read(), StatusCode::kInvalidArgument, {"n09999999", "LOC_synset_mapping.txt"});
}

TEST_F(ImageNetTest, CropsAreCentredToEvaluateAndRandomToTrain) {
  const auto table = Read();
  SYNCGRADS_ASSERT_OK(table);
  const auto read = [&](const ImageUse& use) {
    std::vector<float> pixels(3 * 12 * 12);
    SYNCGRADS_EXPECT_OK(table->images->Read(0, use, absl::MakeSpan(pixels)));
    return pixels;
  };
  EXPECT_EQ(read({}), read({false, 4, 9}));
  EXPECT_EQ(read({true, 4, 9}), read({true, 4, 9}));
  EXPECT_NE(read({true, 4, 9}), read({true, 4, 10}));
  EXPECT_NE(read({true, 4, 9}), read({true, 5, 9}));
}

TEST_F(ImageNetTest, ARandomPositionIsRandomInBothDirections) {
  const auto table = Read();
  SYNCGRADS_ASSERT_OK(table);
  // The image of 24 x 16 pixels, of which 12 x 12 are cut out, is redder to the right and greener
  // downwards. So the first pixel is from 0 to 12 / 24 in red, and from 0 to 4 / 16 in green.
  const float most[] = {12.0f / 24, 4.0f / 16};
  float least_seen[] = {1, 1}, most_seen[] = {0, 0};
  for (uint64_t step = 0; step < 100; ++step) {
    std::vector<float> pixels(3 * 12 * 12);
    SYNCGRADS_ASSERT_OK(table->images->Read(0, {true, 4, step}, absl::MakeSpan(pixels)));
    for (size_t channel = 0; channel < 2; ++channel) {
      least_seen[channel] = std::min(least_seen[channel], pixels[channel]);
      most_seen[channel] = std::max(most_seen[channel], pixels[channel]);
    }
  }
  for (size_t channel = 0; channel < 2; ++channel) {
    EXPECT_LT(least_seen[channel], 0.2f * most[channel]) << channel;
    EXPECT_GT(most_seen[channel], 0.7f * most[channel]) << channel;
    EXPECT_LT(most_seen[channel], 1.2f * most[channel]) << channel;
  }
}

TEST_F(ImageNetTest, TrainingCropsAreThoseOfTheJobFile) {
  const auto read = [&](v1::ImageNetSource::TrainingCrop crop, const ImageUse& use) {
    spec_.set_training_crop(crop);
    const auto table = Read();
    SYNCGRADS_EXPECT_OK(table);
    std::vector<float> pixels(3 * 12 * 12);
    SYNCGRADS_EXPECT_OK(table->images->Read(0, use, absl::MakeSpan(pixels)));
    return pixels;
  };
  const std::vector<float> evaluated = read(v1::ImageNetSource::RANDOM_RESIZED, {});
  EXPECT_EQ(read(v1::ImageNetSource::CENTRE, {true, 4, 9}), evaluated);
  const std::vector<float> resized = read(v1::ImageNetSource::RANDOM_RESIZED, {true, 4, 9});
  EXPECT_NE(resized, evaluated);
  EXPECT_NE(resized, read(v1::ImageNetSource::RANDOM_POSITION, {true, 4, 9}));
  EXPECT_NE(resized, read(v1::ImageNetSource::RANDOM_RESIZED, {true, 4, 10}));
  EXPECT_EQ(resized, read(v1::ImageNetSource::RANDOM_RESIZED, {true, 4, 9}));
  EXPECT_NE(resized, read(v1::ImageNetSource::RANDOM_RESIZED, {true, 5, 9}));
  // No crop of at least the whole image is smaller, so all are the same.
  spec_.set_min_area(1);
  EXPECT_EQ(read(v1::ImageNetSource::RANDOM_RESIZED, {true, 4, 9}),
            read(v1::ImageNetSource::RANDOM_RESIZED, {true, 4, 10}));
}

TEST_F(ImageNetTest, WithoutSizesTheShorterSideIs256AndTheCrop224) {
  directory_.Write("ILSVRC/Data/CLS-LOC/train/n02006656/a_1.JPEG", Gradient(320, 280));
  spec_.set_training_crop(v1::ImageNetSource::RANDOM_RESIZED);
  const auto read = [&](const ImageUse& use) {
    const auto table = Read();
    SYNCGRADS_EXPECT_OK(table);
    EXPECT_EQ(table->images->shape(), Shape::Image(3, 224, 224));
    std::vector<unsigned char> pixels(3 * 224 * 224);
    SYNCGRADS_EXPECT_OK(table->images->ReadBytes(0, use, absl::MakeSpan(pixels)));
    return pixels;
  };
  spec_.set_smallest_side(256);
  spec_.set_size(224);
  spec_.set_min_area(0.08);
  const auto evaluated = read({}), trained = read({true, 4, 9});
  spec_.clear_smallest_side();
  spec_.clear_size();
  spec_.clear_min_area();
  EXPECT_TRUE(read({}) == evaluated);
  EXPECT_TRUE(read({true, 4, 9}) == trained);
}

TEST_F(ImageNetTest, InTrainingHalfOfTheImagesAreMirroredUnlessTheJobFileSaysOtherwise) {
  v1::DataSpec spec;
  *spec.mutable_imagenet() = spec_;
  spec.mutable_imagenet()->set_training_crop(v1::ImageNetSource::CENTRE);
  const auto read = [&](const ImageUse& use) {
    const auto data = LoadShards(spec, std::make_shared<FileStorage>(), {TargetKind::kClass});
    SYNCGRADS_EXPECT_OK(data);
    const Table& table = data->shards[0].table;
    std::vector<unsigned char> pixels(3 * 12 * 12);
    SYNCGRADS_EXPECT_OK(table.images->ReadBytes(0, use, absl::MakeSpan(pixels)));
    return pixels;
  };
  const std::vector<unsigned char> plain = read({});
  std::vector<unsigned char> mirrored;
  for (size_t pixel = 0; pixel < 12 * 12; ++pixel) {
    const auto from = plain.begin() + static_cast<int64_t>(3 * (pixel / 12 * 12 + 11 - pixel % 12));
    mirrored.insert(mirrored.end(), from, from + 3);
  }
  ASSERT_NE(mirrored, plain);
  int count = 0;
  for (uint64_t step = 0; step < 400; ++step) {
    const std::vector<unsigned char> trained = read({true, 4, step});
    EXPECT_TRUE(trained == plain || trained == mirrored) << step;
    count += trained == mirrored;
  }
  // Four standard deviations.
  EXPECT_GE(count, 160);
  EXPECT_LE(count, 240);
  spec.mutable_image()->mutable_augmentation();
  for (uint64_t step = 0; step < 10; ++step) EXPECT_EQ(read({true, 4, step}), plain);
}

TEST_F(ImageNetTest, TheTestPartHasImagesButNoClasses) {
  directory_.Write("LOC_sample_submission.csv",
                   "ImageId,PredictionString\nt_1,n02006656 1 2 3 4\nt_2,\n");
  spec_.set_part(v1::ImageNetSource::TEST);
  const auto table = Read(TargetKind::kNone);
  SYNCGRADS_ASSERT_OK(table);
  ASSERT_EQ(table->rows, 2u);
  EXPECT_EQ(table->images->NameOf(1), directory_.path() + "/ILSVRC/Data/CLS-LOC/test/t_2.JPEG");
  ExpectError(Read(), StatusCode::kFailedPrecondition, {"part is TEST", "no classes"});
}

TEST_F(ImageNetTest, DamagedAndMissingImagesAreNamed) {
  const auto table = Read();
  SYNCGRADS_ASSERT_OK(table);
  std::vector<float> pixels(3 * 12 * 12);
  ExpectError(table->images->Read(1, {}, absl::MakeSpan(pixels)), StatusCode::kDataLoss,
              {"n01440764/a_2.JPEG: "});
  ExpectError(table->images->Read(2, {}, absl::MakeSpan(pixels)), StatusCode::kNotFound,
              {"n01443537/a_4.JPEG"});
}

TEST_F(ImageNetTest, RowsThatMakeNoSenseAreNamedWithTheirLine) {
  WriteTable("train", "a_1,n02006656 1 2 3 4\na_2,n02006656 1 2 3\n");
  ExpectError(Read(), StatusCode::kInvalidArgument,
              {"LOC_train_solution.csv:3: ", "has 4 parts", "multiple of 5"});
  WriteTable("train", "a_1,n07777777 1 2 3 4\n");
  ExpectError(Read(), StatusCode::kInvalidArgument,
              {"LOC_train_solution.csv:2: class \"n07777777\"", "LOC_synset_mapping.txt"});
  WriteTable("train", "a_1\n");
  ExpectError(Read(), StatusCode::kInvalidArgument, {"LOC_train_solution.csv:2: "});
  directory_.Write("LOC_train_solution.csv", "Id,Prediction\n");
  ExpectError(Read(), StatusCode::kInvalidArgument, {"no column \"ImageId\""});
  directory_.Write("LOC_synset_mapping.txt", "n01440764 tench\nn01440764 tench again\n");
  ExpectError(Read(), StatusCode::kInvalidArgument, {"LOC_synset_mapping.txt:2: n01440764"});
}

// The pixels of each image of a table, by class.
std::multimap<std::string, std::vector<float>> Images(const Table& table) {
  std::multimap<std::string, std::vector<float>> images;
  for (size_t row = 0; row < table.rows; ++row) {
    std::vector<float> pixels(static_cast<size_t>(table.images->shape().size()));
    SYNCGRADS_EXPECT_OK(table.images->Read(table.ImageOf(row), {}, absl::MakeSpan(pixels)));
    images.emplace(table.classes[static_cast<size_t>(table.targets[row])].name, pixels);
  }
  return images;
}

TEST_F(ImageNetTest, PackedImagesAreThoseOfTheFolder) {
  directory_.Write("ILSVRC/Data/CLS-LOC/train/n01440764/a_2.JPEG", Gradient(40, 20));
  directory_.Write("ILSVRC/Data/CLS-LOC/train/n01443537/a_4.JPEG", Gradient(20, 60));
  const auto single = Read();
  SYNCGRADS_ASSERT_OK(single);
  auto list = ListImageNetFolder(directory_.path(), v1::ImageNetSource::TRAIN);
  SYNCGRADS_ASSERT_OK(list);
  const TemporaryDirectory packed;
  PackOptions options;
  options.output = packed.path();
  options.images_per_tar = 2;
  const auto pattern = Pack(*std::move(list), options);
  SYNCGRADS_ASSERT_OK(pattern);
  EXPECT_EQ(*pattern, "part-{0000..0001}.tar");
  spec_.set_path(packed.path());
  spec_.add_tars(*pattern);
  const auto table = Read();
  SYNCGRADS_ASSERT_OK(table);
  EXPECT_EQ(table->rows, 3u);
  EXPECT_EQ(Images(*table), Images(*single));
  EXPECT_EQ(table->class_descriptions, single->class_descriptions);
  const auto mapping_in = [](const TemporaryDirectory& directory) {
    return *FileStorage(directory.path()).Read("LOC_synset_mapping.txt", 1000);
  };
  EXPECT_EQ(mapping_in(packed), mapping_in(directory_));
  // The same without the indices, and for one class.
  std::filesystem::remove(packed.path() + "/part-0000.tar.csv");
  std::filesystem::remove(packed.path() + "/part-0001.tar.csv");
  const auto scanned = Read();
  SYNCGRADS_ASSERT_OK(scanned);
  EXPECT_EQ(Images(*scanned), Images(*single));
  spec_.add_classes("n01443537");
  EXPECT_EQ(Read()->rows, 1u);
}

TEST_F(ImageNetTest, AnArchiveThatIsCutShortCostsTheImagesThatAreMissing) {
  const TemporaryDirectory packed;
  ImagesToPack list;
  for (int i = 0; i < 2; ++i) {
    const std::string name = "golden cat/" + std::to_string(i) + ".jpg";
    list.images.push_back({directory_.Write(name, Gradient(40, 20)), 0});
  }
  const auto found = ListFolder(directory_.path());
  SYNCGRADS_ASSERT_OK(found);
  EXPECT_EQ(found->images.size(), 2u);
  EXPECT_THAT(found->classes, ::testing::Contains("golden_cat golden cat"));
  PackOptions options;
  options.output = packed.path();
  const auto pattern = Pack(*found, options);
  SYNCGRADS_ASSERT_OK(pattern);
  const std::string archive = packed.path() + "/part-0000.tar";
  std::filesystem::resize_file(archive, 800);
  spec_.set_path(packed.path());
  spec_.add_tars(*pattern);
  const auto table = Read();
  SYNCGRADS_ASSERT_OK(table);
  ASSERT_EQ(table->rows, 2u);
  std::vector<unsigned char> pixels(3 * 12 * 12);
  for (size_t image = 0; image < 2; ++image) {
    ExpectError(table->images->ReadBytes(image, {}, absl::MakeSpan(pixels)), StatusCode::kDataLoss,
                {archive + ": 0000000", "cut short"});
  }
  // Without the index, the archive's headers are read.
  std::filesystem::remove(archive + ".csv");
  ExpectError(Read(), StatusCode::kDataLoss, {archive, "cut short"});
}

}  // namespace
}  // namespace syncgrads
