#include "worker/data/images/jpeg_decoder.h"

#include <jerror.h>

#include <algorithm>

namespace syncgrads {
namespace {

// Converts pixels of cyan, magenta, yellow and black to red, green and blue, in place. `inverted`:
// 255 is no ink, as Adobe's programs write it.
void InkToLight(bool inverted, std::vector<unsigned char>& bytes) {
  const auto light = [inverted](unsigned char ink) { return inverted ? ink : 255 - ink; };
  size_t to = 0;
  for (size_t from = 0; from < bytes.size(); from += 4) {
    const int black = light(bytes[from + 3]);
    for (size_t i = 0; i < 3; ++i) {
      bytes[to++] = static_cast<unsigned char>((light(bytes[from + i]) * black + 127) / 255);
    }
  }
  bytes.resize(to);
}

}  // namespace

JpegDecoder::JpegDecoder() {
  image_.err = jpeg_std_error(&errors_);
  errors_.error_exit = &OnError;
  errors_.emit_message = &OnMessage;
  image_.client_data = this;
  jpeg_create_decompress(&image_);
}

JpegDecoder::~JpegDecoder() { jpeg_destroy_decompress(&image_); }

JpegDecoder& JpegDecoder::Of(j_common_ptr image) {
  return *static_cast<JpegDecoder*>(image->client_data);
}

void JpegDecoder::OnError(j_common_ptr image) {
  JpegDecoder& self = Of(image);
  self.errors_.format_message(image, self.message_);
  std::longjmp(self.jump_, 1);
}

void JpegDecoder::OnMessage(j_common_ptr image, int level) {
  constexpr int kWarning = -1;
  if (level != kWarning) return;
  // Some warnings are harmless, such as extra bytes between two markers.
  switch (image->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_BOGUS_PROGRESSION:
    case JWRN_MUST_RESYNC:
    case JWRN_ARITH_BAD_CODE:
      OnError(image);
    default:
      return;
  }
}

bool JpegDecoder::TryHeader(absl::string_view bytes) {
  if (setjmp(jump_) != 0) return false;
  jpeg_mem_src(&image_, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
  jpeg_read_header(&image_, TRUE);
  return true;
}

int64_t JpegDecoder::CoefficientBytes() {
  if (!jpeg_has_multiple_scans(&image_)) return 0;
  int64_t bytes = 0;
  for (int i = 0; i < image_.num_components; ++i) {
    const jpeg_component_info& component = image_.comp_info[i];
    bytes += int64_t{component.width_in_blocks} * component.height_in_blocks *
             static_cast<int64_t>(sizeof(JBLOCK));
  }
  return bytes;
}

bool JpegDecoder::TryStart(int denominator, PixelRegion& region) {
  if (setjmp(jump_) != 0) return false;
  image_.scale_num = 1;
  image_.scale_denom = static_cast<unsigned>(denominator);
  const bool has_black = image_.jpeg_color_space == JCS_CMYK || image_.jpeg_color_space == JCS_YCCK;
  image_.out_color_space = has_black ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&image_);
  // libjpeg interpolates colours between neighbours, so the outermost pixels of what is decoded
  // differ from those of the whole image. One more pixel on each side keeps these out of the
  // region.
  const int right = std::min(region.left + region.width + 1, static_cast<int>(image_.output_width));
  JDIMENSION left = static_cast<JDIMENSION>(std::max(region.left - 1, 0));
  JDIMENSION width = static_cast<JDIMENSION>(right) - left;
  jpeg_crop_scanline(&image_, &left, &width);
  region.left = static_cast<int>(left);
  region.width = static_cast<int>(width);
  jpeg_skip_scanlines(&image_, static_cast<JDIMENSION>(region.top));
  return true;
}

bool JpegDecoder::TryLines(PixelRegion& region) {
  if (setjmp(jump_) != 0) return false;
  for (int read = 0; read < region.height;) {
    JSAMPROW line =
        region.bytes.data() + static_cast<size_t>(read) * region.width * image_.output_components;
    read += static_cast<int>(jpeg_read_scanlines(&image_, &line, 1));
  }
  jpeg_abort_decompress(&image_);
  return true;
}

absl::Status JpegDecoder::ReadHeader(absl::string_view bytes) {
  jpeg_abort_decompress(&image_);
  return TryHeader(bytes) ? absl::OkStatus() : absl::DataLossError(message_);
}

absl::Status JpegDecoder::ReadRegion(int denominator, PixelRegion& region) {
  if (!TryStart(denominator, region)) return absl::DataLossError(message_);
  region.bytes.resize(static_cast<size_t>(region.width) * region.height * image_.output_components);
  if (!TryLines(region)) return absl::DataLossError(message_);
  if (image_.out_color_space == JCS_CMYK) InkToLight(image_.saw_Adobe_marker, region.bytes);
  return absl::OkStatus();
}

}  // namespace syncgrads
