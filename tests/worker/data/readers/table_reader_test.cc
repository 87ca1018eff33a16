#include "worker/data/readers/table_reader.h"

#include <gtest/gtest.h>

#include "tests/worker/testing/status.h"
#include "worker/data/readers/delimited.h"
#include "worker/storage/file_storage.h"

namespace syncgrads {
namespace {

absl::StatusOr<Table> Parse(const std::string& text, const std::string& path, char delimiter,
                            const TableColumns& columns) {
  absl::StatusOr<DelimitedReader> rows = DelimitedReader::Create(text, path, delimiter);
  if (!rows.ok()) return rows.status();
  return ParseTable(*rows, columns);
}

const TableColumns kNumbers = {{}, "y", TargetKind::kNumber};
const TableColumns kClasses = {{}, "kind", TargetKind::kClass};

absl::StatusOr<Table> Parse(const std::string& text, const TableColumns& columns = kNumbers) {
  return Parse(text, "t.csv", ',', columns);
}

void ExpectRefused(const std::string& text, std::initializer_list<std::string> texts) {
  SCOPED_TRACE(text);
  ExpectError(Parse(text), absl::StatusCode::kInvalidArgument, texts);
}

TEST(TableReaderTest, ReadsFeaturesInTheOrderOfTheHeader) {
  const auto table = Parse("a,y,b\n1,2,3\n4,5,-6e1\n");
  SYNCGRADS_ASSERT_OK(table);
  EXPECT_EQ(table->feature_names, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(table->features, (std::vector<double>{1, 3, 4, -60}));
  EXPECT_EQ(table->targets, (std::vector<double>{2, 5}));
  EXPECT_EQ(table->rows, 2u);
}

TEST(TableReaderTest, ReadsFeaturesInTheOrderAskedFor) {
  const auto table = Parse("a,y,b,c\n1,2,3,x\n", {{"b", "a"}, "y", TargetKind::kNumber});
  SYNCGRADS_ASSERT_OK(table);
  EXPECT_EQ(table->features, (std::vector<double>{3, 1}));
}

TEST(TableReaderTest, ReadsTabsQuotesCarriageReturnsAndAByteOrderMark) {
  const auto tabs = Parse("a\ty\n1\t2\n", "t.tsv", '\t', kNumbers);
  SYNCGRADS_ASSERT_OK(tabs);
  EXPECT_EQ(tabs->features, (std::vector<double>{1}));
  const auto quotes = Parse(
      "\xef\xbb\xbf"
      "a,kind\r\n1,\"x, \"\"y\"\"\"\r\n\"2\",z\r\n\r\n",
      kClasses);
  SYNCGRADS_ASSERT_OK(quotes);
  EXPECT_EQ(quotes->features, (std::vector<double>{1, 2}));
  EXPECT_EQ(quotes->classes[0].name, "x, \"y\"");
}

TEST(TableReaderTest, NumbersClassesInSortedOrderWithTheirPlaces) {
  const auto table = Parse("a,kind\n1,lion\n2,cat\n3,lion\n", kClasses);
  SYNCGRADS_ASSERT_OK(table);
  ASSERT_EQ(table->classes.size(), 2u);
  EXPECT_EQ(table->classes[0].name, "cat");
  EXPECT_EQ(table->classes[0].place, "t.csv:3");
  EXPECT_EQ(table->classes[1].place, "t.csv:2");
  EXPECT_EQ(table->targets, (std::vector<double>{1, 0, 1}));
}

TEST(TableReaderTest, ATableMayHaveNoRows) {
  const auto table = Parse("a,y\n");
  SYNCGRADS_ASSERT_OK(table);
  EXPECT_EQ(table->rows, 0u);
}

TEST(TableReaderTest, ATargetThatIsNotReadMayBeMissing) {
  SYNCGRADS_EXPECT_OK(Parse("a,b\n1,2\n", {{}, "y", TargetKind::kNone}));
}

TEST(TableReaderTest, MissingCellsAreNamed) {
  ExpectRefused("a,b,y\n1,2,3\n1,2\n", {"t.csv:3:", "\"y\"", "2 cells", "header has 3"});
  ExpectRefused("a,b,y\n1,,3\n", {"t.csv:2: column \"b\": the cell is empty"});
  ExpectRefused("a,b,y\n1,2,\n", {"t.csv:2: column \"y\": the cell is empty"});
  ExpectRefused("a,b,y\n1,2,3\n\n1,2,3\n", {"t.csv:3:", "1 cells"});
}

TEST(TableReaderTest, CellsThatAreNoFiniteNumbersAreNamed) {
  ExpectRefused("a,y\n1,2\nred,2\n", {"t.csv:3: column \"a\": \"red\" is not a number"});
  ExpectRefused("a,y\n1,2x\n", {"t.csv:2: column \"y\": \"2x\""});
  ExpectRefused("a,y\nnan,2\n", {"t.csv:2: column \"a\": \"nan\" is not a finite number"});
  ExpectRefused("a,y\n1e999,2\n", {"t.csv:2: column \"a\": \"1e999\""});
}

TEST(TableReaderTest, TooManyCellsAreNamed) {
  ExpectRefused("a,y\n1,2,3\n", {"t.csv:2:", "has 3", "header has 2"});
}

TEST(TableReaderTest, BadHeadersAreNamed) {
  ExpectRefused("", {"t.csv:1: the file is empty"});
  ExpectRefused("\n\n", {"t.csv:1: the file is empty"});
  ExpectRefused("a,a,y\n1,2,3\n", {"t.csv:1:", "two columns \"a\""});
  ExpectRefused("a,,y\n1,2,3\n", {"t.csv:1: column 2"});
  ExpectRefused("a,b\n1,2\n", {"t.csv:1: there is no column \"y\"", "a, b"});
  ExpectRefused("y\n1\n", {"t.csv:1:", "besides the target \"y\""});
  ExpectError(Parse("a,y\n1,2\n", {{"b"}, "y", TargetKind::kNumber}),
              absl::StatusCode::kInvalidArgument, {"there is no column \"b\""});
}

TEST(TableReaderTest, AQuoteThatDoesNotEndIsNamed) {
  ExpectRefused("a,y\n\"1,2\n", {"t.csv:2: the quote in cell 1"});
}

TEST(TableReaderTest, AMissingFileIsNamed) {
  ExpectError(ReadTable(FileStorage(), "/nowhere/t.csv", ',', kNumbers),
              absl::StatusCode::kNotFound, {"/nowhere/t.csv"});
}

}  // namespace
}  // namespace syncgrads
