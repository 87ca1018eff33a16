#include "common/names.h"

#include <string>

#include "gtest/gtest.h"
#include "tests/common/expect_error.h"

namespace syncgrads {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(NamesTest, TakesNamesInAnyLanguage) {
  for (const char* name : {"", "iris", "dense1/kernel:0", "w\xc3\xb6rker",
                           "\xe4\xbd\x9c\xe6\xa5\xad", "\xf0\x9f\x90\x8d", "a b"}) {
    EXPECT_THAT(CheckName("the job's name", name), IsOk()) << name;
  }
}

TEST(NamesTest, RefusesControlCharactersAndShowsThemEscaped) {
  ExpectError(CheckName("the job's name", "a\nb"), kInvalid, {"the job's name", "a\\x0ab"});
  ExpectError(CheckName("x", "\x1b[31m"), kInvalid, {"\\x1b[31m"});
  ExpectError(CheckName("x", "\x7f"), kInvalid, {"\\x7f"});
  ExpectError(CheckName("x", std::string(1, '\0')), kInvalid, {"\\x00"});
  // U+009B, which terminals interpret as ESC [; and U+2028, a line separator.
  ExpectError(CheckName("x", "\xc2\x9b"), kInvalid, {"\\xc2\\x9b"});
  ExpectError(CheckName("x", "\xe2\x80\xa8"), kInvalid, {"\\xe2\\x80\\xa8"});
}

TEST(NamesTest, RefusesCharactersThatChangeTheDirectionOfAText) {
  for (const char* name : {"\u061c", "\u200e", "\u200f", "\u202a", "\u202b", "\u202c", "\u202d",
                           "\u202e", "\u2066", "\u2067", "\u2068", "\u2069"}) {
    EXPECT_EQ(CheckName("x", name).code(), kInvalid) << Printable(name);
  }
  EXPECT_EQ(Printable("job\u202egpj.\u2069"), "job\\xe2\\x80\\xaegpj.\\xe2\\x81\\xa9");
  // Their neighbours, with the joiner of emoji; and Hebrew and Arabic letters.
  for (const char* name : {"\u061b", "\u200d", "\u2010", "\u202f", "\u2065", "\u206a",
                           "\u05d0\u05d1", "\u0627\u0644"}) {
    EXPECT_THAT(CheckName("x", name), IsOk()) << name;
  }
}

TEST(NamesTest, RefusesWhatIsNotUtf8) {
  // A lone continuation byte, an incomplete character, an overlong slash, a surrogate, and a code
  // point beyond U+10FFFF.
  for (const char* name : {"\x80", "\xe4\xbd", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                           "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_EQ(CheckName("x", name).code(), kInvalid);
    EXPECT_TRUE(IsPrintable(Printable(name)));
  }
}

TEST(NamesTest, RefusesALongNameAndSaysBothLengths) {
  EXPECT_THAT(CheckName("x", std::string(255, 'a')), IsOk());
  ExpectError(CheckName("the worker's host", std::string(256, 'a')), kInvalid,
              {"the worker's host", "256 bytes", "255"});
  const absl::Status huge = CheckName("x", std::string(10 << 20, 'a'), 4096);
  ExpectError(huge, kInvalid, {"10485760 bytes", "4096"});
  EXPECT_LT(huge.message().size(), 256u);
}

TEST(NamesTest, CutsAText) {
  EXPECT_EQ(Printable("a\nb", 10), "a\\x0ab");
  EXPECT_EQ(Printable("abcdef", 3), "abc...");
}

}  // namespace
}  // namespace syncgrads
