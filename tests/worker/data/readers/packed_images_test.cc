// Images in tar archives: those of other programs, those of ps-pack, and damaged ones.

#include "worker/data/readers/packed_images.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/worker/testing/status.h"
#include "tests/worker/testing/temporary_directory.h"
#include "worker/data/readers/tar.h"
#include "worker/storage/file_storage.h"

namespace syncgrads {
namespace {

std::string Member(const std::string& name, const std::string& contents, char type = '0') {
  return absl::StrCat(TarHeader(name, contents.size(), type), contents,
                      std::string(TarPadding(contents.size()), '\0'));
}

const std::string& End() {
  static const auto& end = *new std::string(2 * kTarBlock, '\0');
  return end;
}

class PackedImagesTest : public testing::Test {
 protected:
  absl::StatusOr<std::vector<PackedImage>> List(const std::string& archive) {
    directory_.Write("a.tar", archive);
    return ListPacked(storage_, "a.tar");
  }

  TemporaryDirectory directory_;
  const FileStorage storage_{directory_.path()};
};

TEST_F(PackedImagesTest, ImagesHaveTheClassesBesideThem) {
  const std::string long_image(5000, 'j');
  const auto images = List(absl::StrCat(Member("x/1.jpg", long_image), Member("x/1.cls", "7"),
                                        Member("x/2.json", "{}"), Member("x/2.cls", "3\n"),
                                        Member("x/2.JPEG", "jj"), Member("readme.txt", "text"),
                                        Member("x/3.jpg", ""), End()));
  SYNCGRADS_ASSERT_OK(images);
  ASSERT_EQ(images->size(), 3u);
  EXPECT_EQ((*images)[0].name, "x/1.jpg");
  EXPECT_EQ((*images)[0].label, 7u);
  EXPECT_EQ((*images)[0].offset, kTarBlock);
  EXPECT_EQ((*images)[0].size, 5000u);
  EXPECT_EQ((*images)[1].label, 3u);
  EXPECT_EQ(*storage_.ReadRange("a.tar", (*images)[1].offset, (*images)[1].size), "jj");
  EXPECT_EQ((*images)[2].label, std::nullopt);
}

TEST_F(PackedImagesTest, LongNamesOfGnuAndPaxAreRead) {
  const std::string name(300, 'n');
  const std::string record = absl::StrCat(" path=", name, ".jpg\n");
  const std::string pax = absl::StrCat(record.size() + 3, record);
  const auto images =
      List(absl::StrCat(Member("pax", "19 comment=nothing\n", 'g'),
                        Member("long", name + "1.jpg" + std::string(1, '\0'), 'L'),
                        Member("short.jpg", "a"), Member("pax", pax, 'x'), Member("short.jpg", "b"),
                        Member("folder.jpg", "", '5'), Member("last.jpg", "c"), End()));
  SYNCGRADS_ASSERT_OK(images);
  ASSERT_EQ(images->size(), 3u);
  EXPECT_EQ((*images)[0].name, name + "1.jpg");
  EXPECT_EQ((*images)[1].name, name + ".jpg");
  EXPECT_EQ((*images)[2].name, "last.jpg");
}

// In the format of POSIX, the folders of a long name are in a field of their own, at byte 345.
TEST_F(PackedImagesTest, TheFoldersOfALongNameMayBeInTheHeadersPrefix) {
  const auto member = [](const std::string& folders, const std::string& magic) {
    std::string header = TarHeader("1.jpg", 1, '0');
    header.replace(257, magic.size(), magic);
    header.replace(345, folders.size(), folders);
    header.replace(148, 8, 8, ' ');
    unsigned sum = 0;
    for (const char byte : header) sum += static_cast<unsigned char>(byte);
    header.replace(148, 6, absl::StrFormat("%06o", sum));
    header[154] = '\0';
    return absl::StrCat(header, "j", std::string(TarPadding(1), '\0'));
  };
  const std::string folders(150, 'f');
  const auto images = List(absl::StrCat(member(folders, std::string("ustar\0"
                                                                    "00",
                                                                    8)),
                                        member(folders, "ustar  "), End()));
  SYNCGRADS_ASSERT_OK(images);
  ASSERT_EQ(images->size(), 2u);
  EXPECT_EQ((*images)[0].name, folders + "/1.jpg");
  EXPECT_EQ((*images)[1].name, "1.jpg") << "GNU's format has other fields there";
}

TEST_F(PackedImagesTest, DamageIsNamedWithItsPlace) {
  const std::string whole = absl::StrCat(Member("1.jpg", std::string(600, 'j')),
                                         Member("1.cls", "7"), Member("2.jpg", "k"), End());
  // Each length at which bytes of a member, or the end marker, are missing.
  for (const size_t size :
       {whole.size() - 2 * kTarBlock, size_t{3000}, size_t{700}, size_t{100}, size_t{0}}) {
    ExpectError(List(whole.substr(0, size)), absl::StatusCode::kDataLoss,
                {"a.tar: byte ", "cut short"});
  }
  std::string damaged = whole;
  damaged[3 * kTarBlock + 5] ^= 1;  // in the second header
  ExpectError(List(damaged), absl::StatusCode::kDataLoss, {"a.tar: byte 1536", "checksum"});
  ExpectError(List(absl::StrCat(Member("1.cls", "tench"), End())),
              absl::StatusCode::kInvalidArgument, {"a.tar: 1.cls is \"tench\""});
}

TEST_F(PackedImagesTest, AnIndexIsReadInPlaceOfTheArchive) {
  const PackedImage image = {"1.jpg", 7, 512, 600};
  directory_.Write("a.tar.csv", absl::StrCat(kIndexHeader, IndexLine(image), "2.jpg,,2048,1\n"));
  const auto images = ListPacked(storage_, "a.tar");
  SYNCGRADS_ASSERT_OK(images);
  ASSERT_EQ(images->size(), 2u);
  EXPECT_EQ((*images)[0].label, 7u);
  EXPECT_EQ((*images)[0].size, 600u);
  EXPECT_EQ((*images)[1].label, std::nullopt);
  EXPECT_EQ((*images)[1].offset, 2048u);
  directory_.Write("a.tar.csv", absl::StrCat(kIndexHeader, "1.jpg,x,0,0\n"));
  ExpectError(ListPacked(storage_, "a.tar"), absl::StatusCode::kInvalidArgument, {"a.tar.csv:2"});
  directory_.Write("a.tar.csv", "name,offset\n");
  ExpectError(ListPacked(storage_, "a.tar"), absl::StatusCode::kInvalidArgument, {"a.tar.csv:1"});
}

TEST(ExpandNamesTest, ARangeHasTheDigitsOfItsFirstNumber) {
  EXPECT_EQ(*ExpandNames("t.tar"), (std::vector<std::string>{"t.tar"}));
  EXPECT_EQ(*ExpandNames("t-{08..10}.tar"),
            (std::vector<std::string>{"t-08.tar", "t-09.tar", "t-10.tar"}));
  const std::string most = "18446744073709551615";
  EXPECT_EQ(*ExpandNames("{" + most + ".." + most + "}"), (std::vector<std::string>{most}));
  for (const char* pattern :
       {"{1}", "{3..1}", "{a..b}", "{0..1000000}", "{000000000000000000000..1}"}) {
    ExpectError(ExpandNames(pattern), absl::StatusCode::kInvalidArgument, {pattern});
  }
}

}  // namespace
}  // namespace syncgrads
