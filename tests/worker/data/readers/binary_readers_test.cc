// Readers of binary files: IDX, CIFAR-10, NumPy.

#include <gtest/gtest.h>
#include <zlib.h>

#include <string>
#include <vector>

#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/base/gzip.h"
#include "worker/data/readers/cifar10_reader.h"
#include "worker/data/readers/idx_reader.h"
#include "worker/data/readers/numpy_reader.h"
#include "worker/storage/file_storage.h"

namespace syncgrads {
namespace {

using absl::StatusCode;

std::string Bytes(std::initializer_list<int> bytes) {
  std::string text;
  for (const int byte : bytes) text.push_back(static_cast<char>(byte));
  return text;
}

std::string Gzip(const std::string& text) {
  z_stream stream = {};
  EXPECT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
  std::string packed(deflateBound(&stream, text.size()) + 32, '\0');
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

std::vector<float> Pixels(const Table& table, size_t row) {
  std::vector<float> pixels(static_cast<size_t>(table.images->shape().size()));
  SYNCGRADS_EXPECT_OK(table.images->Read(table.ImageOf(row), ImageUse(), absl::MakeSpan(pixels)));
  return pixels;
}

// Three images of 2x2 pixels.
const std::string& IdxImages() {
  static const auto& text = *new std::string(Bytes(
      {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 2, 0, 0, 0, 2, 0, 51, 102, 255, 1, 2, 3, 4, 5, 6, 7, 8}));
  return text;
}
const std::string& IdxLabels() {
  static const auto& text = *new std::string(Bytes({0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 7}));
  return text;
}

TEST(IdxReaderTest, ReadsImagesAndLabelsAlsoCompressed) {
  const TemporaryDirectory directory;
  const std::string images = directory.Write("images.gz", Gzip(IdxImages()));
  const std::string labels = directory.Write("labels", IdxLabels());
  const auto table = ReadIdx(FileStorage(), images, labels, TargetKind::kClass);
  SYNCGRADS_ASSERT_OK(table);
  EXPECT_EQ(table->rows, 3u);
  EXPECT_EQ(ToString(table->images->shape()), "1x2x2");
  EXPECT_EQ(Pixels(*table, 0), (std::vector<float>{0, 0.2f, 0.4f, 1}));
  // The targets are indices into the classes' names, "2" and "7".
  EXPECT_EQ(table->targets, (std::vector<double>{1, 0, 1}));
  EXPECT_EQ(table->classes[1].name, "7");
  EXPECT_EQ(table->classes[1].place, labels + ": label 0");
  const Table rest = table->Select({1, 2});
  EXPECT_EQ(Pixels(rest, 1), Pixels(*table, 2));
  EXPECT_EQ(ReadIdx(FileStorage(), images, "", TargetKind::kNone)->rows, 3u);
}

TEST(IdxReaderTest, FilesThatAreNoneAreRefusedWithWhatIsWrong) {
  const TemporaryDirectory directory;
  const std::string images = directory.Write("images", IdxImages());
  const std::string labels = directory.Write("labels", IdxLabels());
  const auto read = [&](const std::string& a, const std::string& b) {
    return ReadIdx(FileStorage(), a, b, TargetKind::kClass);
  };
  ExpectError(read(labels, labels), StatusCode::kDataLoss, {labels, "1 dimensions", "3"});
  const std::string cut = directory.Write("cut", IdxImages().substr(0, 25));
  ExpectError(read(cut, labels), StatusCode::kDataLoss, {cut, "12 bytes", "has 9"});
  const std::string text = directory.Write("text", "hello, world");
  ExpectError(read(text, labels), StatusCode::kDataLoss, {"is not an IDX file"});
  const std::string two = directory.Write("two", Bytes({0, 0, 8, 1, 0, 0, 0, 2, 7, 2}));
  ExpectError(read(images, two), StatusCode::kInvalidArgument, {"2 labels", "3 images"});
  const std::string huge = directory.Write(
      "huge", Bytes({0, 0, 8, 3, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255}));
  ExpectError(read(huge, labels), StatusCode::kDataLoss, {huge});
  ExpectError(read(directory.path() + "/none", labels), StatusCode::kNotFound, {"/none"});
}

// The length of a file without images does not limit the other two sizes of its header.
TEST(IdxReaderTest, AFileWithoutImagesHasNoHugeShape) {
  const TemporaryDirectory directory;
  const auto read = [&](std::initializer_list<int> sizes) {
    return ReadIdx(FileStorage(),
                   directory.Write("images", Bytes({0, 0, 8, 3, 0, 0, 0, 0}) + Bytes(sizes)), "",
                   TargetKind::kNone);
  };
  SYNCGRADS_EXPECT_OK(read({0, 0, 4, 0, 0, 0, 4, 0}));
  ExpectError(read({0, 0, 4, 0, 0, 0, 4, 1}), StatusCode::kDataLoss,
              {"/images", "0 images of 1024x1025", "1048576"});
  ExpectError(read({255, 255, 255, 255, 255, 255, 255, 255}), StatusCode::kDataLoss,
              {"/images", "0 images of 4294967295x4294967295", "1048576"});
}

TEST(GzipTest, DamagedAndCutFilesAreNamed) {
  const std::string packed = Gzip(std::string(100000, 'x') + "end");
  EXPECT_EQ(Gunzip(packed, "f.gz", 1 << 20)->size(), 100003u);
  EXPECT_EQ(Gunzip(packed + packed, "f.gz", 1 << 20)->size(), 200006u);
  ExpectError(Gunzip(packed.substr(0, packed.size() - 9), "f.gz", 1 << 20), StatusCode::kDataLoss,
              {"f.gz is truncated"});
  ExpectError(Gunzip("no gzip at all", "f.gz", 1 << 20), StatusCode::kDataLoss,
              {"f.gz: damaged after 0"});
  ExpectError(Gunzip(packed, "f.gz", 1000), StatusCode::kInvalidArgument, {"more than 1000"});
}

TEST(Cifar10ReaderTest, ReadsTheRecordsOfAllFilesPlaneByPlane) {
  const TemporaryDirectory directory;
  std::string record(3073, '\0');
  record[0] = 9;
  record[1] = static_cast<char>(255);            // red, first pixel
  record[1 + 1024 + 1] = static_cast<char>(51);  // green, second pixel
  std::string other(3073, '\0');
  other[0] = 3;
  const auto files = {directory.Write("a.bin", record + other), directory.Write("b.bin", other)};
  const auto table = ReadCifar10(FileStorage(), files, TargetKind::kClass);
  SYNCGRADS_ASSERT_OK(table);
  EXPECT_EQ(table->rows, 3u);
  EXPECT_EQ(table->targets, (std::vector<double>{1, 0, 0}));
  const std::vector<float> pixels = Pixels(*table, 0);
  EXPECT_EQ(std::vector<float>(pixels.begin(), pixels.begin() + 6),
            (std::vector<float>{1, 0, 0, 0, 0.2f, 0}));
}

TEST(Cifar10ReaderTest, WrongLengthsAndLabelsAreNamed) {
  const TemporaryDirectory directory;
  std::string record(3073, '\0');
  const std::string cut = directory.Write("cut.bin", record + record.substr(1));
  ExpectError(ReadCifar10(FileStorage(), {cut}, TargetKind::kClass), StatusCode::kDataLoss,
              {cut, "6145", "3073"});
  record[0] = 10;
  const std::string wrong = directory.Write("wrong.bin", std::string(3073, '\0') + record);
  ExpectError(ReadCifar10(FileStorage(), {wrong}, TargetKind::kClass), StatusCode::kDataLoss,
              {wrong + ": record 1", "label 10", "0 to 9"});
}

// Makes a file as numpy.save does: the header is padded so that the data starts at a multiple of 64
// bytes.
std::string Npy(const std::string& type, const std::string& shape, const std::string& numbers,
                const std::string& order = "False") {
  std::string header =
      "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  header.resize((10 + header.size() + 1 + 63) / 64 * 64 - 11, ' ');
  header += "\n";
  return "\x93NUMPY" + Bytes({1, 0, static_cast<int>(header.size()), 0}) + header + numbers;
}

template <typename T>
std::string Raw(std::initializer_list<T> numbers) {
  return std::string(reinterpret_cast<const char*>(numbers.begin()), numbers.size() * sizeof(T));
}

TEST(NumpyReaderTest, ReadsRowsOfAnyTypeAndDimensions) {
  const TemporaryDirectory directory;
  const std::string features =
      directory.Write("x.npy", Npy("<f4", "(2, 2, 2)", Raw<float>({1, 2, 3, 4, 5, 6, 7, 8.5f})));
  const std::string classes = directory.Write("y.npy", Npy("<i8", "(2,)", Raw<int64_t>({10, 9})));
  const auto table = ReadNumpy(FileStorage(), features, classes, TargetKind::kClass);
  SYNCGRADS_ASSERT_OK(table);
  EXPECT_EQ(table->feature_names, (std::vector<std::string>{"x0", "x1", "x2", "x3"}));
  EXPECT_EQ(table->features, (std::vector<double>{1, 2, 3, 4, 5, 6, 7, 8.5}));
  EXPECT_EQ(table->targets, (std::vector<double>{0, 1}));  // "10" sorts before "9"
  const auto bytes = ParseNumpy(Npy("|u1", "(3,)", Bytes({1, 2, 255})), "b.npy");
  SYNCGRADS_ASSERT_OK(bytes);
  EXPECT_EQ(bytes->numbers, (std::vector<double>{1, 2, 255}));
  const std::string numbers =
      directory.Write("n.npy", Npy("<f8", "(2,)", Raw<double>({-0.5, 1e9})));
  EXPECT_EQ(ReadNumpy(FileStorage(), features, numbers, TargetKind::kNumber)->targets,
            (std::vector<double>{-0.5, 1e9}));
  ExpectError(ReadNumpy(FileStorage(), features, numbers, TargetKind::kClass),
              StatusCode::kInvalidArgument, {"n.npy: target 0 is -0.5"});
}

TEST(NumpyReaderTest, FilesThatAreNoneAreRefusedWithWhatIsWrong) {
  const std::string good = Npy("<f4", "(2, 1)", Raw<float>({1, 2}));
  SYNCGRADS_EXPECT_OK(ParseNumpy(good, "x.npy"));
  for (size_t size = 0; size < good.size(); ++size) {
    ExpectError(ParseNumpy(good.substr(0, size), "x.npy"), StatusCode::kDataLoss, {"x.npy"});
  }
  ExpectError(ParseNumpy(good + "x", "x.npy"), StatusCode::kDataLoss, {"8 bytes", "has 9"});
  ExpectError(ParseNumpy(Npy(">f4", "(2,)", Raw<float>({1, 2})), "x.npy"), StatusCode::kDataLoss,
              {"\">f4\""});
  ExpectError(ParseNumpy(Npy("<f4", "(2,)", Raw<float>({1, 2}), "True"), "x.npy"),
              StatusCode::kDataLoss, {"Fortran"});
  ExpectError(ParseNumpy(Npy("<f4", "(9999999999, 9999999999)", ""), "x.npy"),
              StatusCode::kDataLoss, {"too many numbers"});
  const TemporaryDirectory directory;
  const std::string features = directory.Write("x.npy", good);
  const std::string three = directory.Write("y.npy", Npy("|u1", "(3,)", Bytes({1, 2, 3})));
  ExpectError(ReadNumpy(FileStorage(), features, three, TargetKind::kClass),
              StatusCode::kInvalidArgument, {"has 3 numbers", "has 2 rows"});
  const std::string nan =
      directory.Write("nan.npy", Npy("<f8", "(1, 2)", Raw<double>({1, 0.0 / 0.0})));
  ExpectError(ReadNumpy(FileStorage(), nan, "", TargetKind::kNone), StatusCode::kInvalidArgument,
              {"row 0, feature x1", "not finite"});
}

// The length of an array without rows does not limit the other dimensions of its header.
TEST(NumpyReaderTest, AnArrayWithoutRowsHasNoHugeShape) {
  const TemporaryDirectory directory;
  const auto read = [&](const std::string& shape) {
    return ReadNumpy(FileStorage(), directory.Write("x.npy", Npy("<f4", shape, "")), "",
                     TargetKind::kNone);
  };
  EXPECT_EQ(read("(0, 3)")->feature_names.size(), 3u);
  EXPECT_EQ(read("(0, 3, 0, 99999999999)")->feature_names.size(), 0u);
  ExpectError(read("(0, 1048577)"), StatusCode::kDataLoss,
              {"/x.npy", "0 rows of shape (0, 1048577)", "at most 1048576"});
  ExpectError(read("(0, 4294967296, 4294967296)"), StatusCode::kDataLoss,
              {"/x.npy", "(0, 4294967296, 4294967296)", "at most 1048576"});
}

}  // namespace
}  // namespace syncgrads
