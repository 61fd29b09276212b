#include "apps/prove/picture.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "sdk/base/words.h"

namespace picture_test {

using namespace meshwright;
using prove::Picture;

namespace {

// A decoder of so many layers on tp 2 by dp, wrong from one module of a layer backwards.
Picture decoder(int64_t layers, int64_t dp, int64_t turned) {
  const auto ranks = static_cast<size_t>(2 * dp);
  Picture out;
  out.axes = {{"dp_shard", {}}, {"tp", {}}};
  for (int64_t r = 0; r < 2 * dp; ++r) {
    out.axes[0].second.push_back(r / 2);
    out.axes[1].second.push_back(r % 2);
  }
  auto add = [&](const std::string& module, bool wrong) {
    Picture::Line& line = out.line(module, ranks);
    line.forward.assign(ranks, Picture::kRight);
    line.backward = line.forward;
    for (size_t r = 1; wrong && r < ranks; r += 2) line.backward[r] = Picture::kWrong;
  };
  add("model.embed_tokens", true);
  for (int64_t i = 0; i < layers; ++i)
    for (const char* part : {".self_attn.q_proj", ".mlp.a_projection_with_quite_a_long_name", ""})
      add("model.layers." + std::to_string(i) + part, i <= turned);
  add("lm_head", false);
  out.turn("model.layers." + std::to_string(turned) + ".mlp.a_projection_with_quite_a_long_name",
           Picture::Part::backward);
  return out;
}

std::vector<std::string> lines_of(const Picture& picture, bool colour = false) {
  return meshwright::text::split(picture.text({.colour = colour, .unicode = false, .width = 100}),
                                 '\n');
}

}  // namespace

TEST_CASE("layers that are alike are one line, and the one where it turned is open") {
  const std::vector<std::string> lines = lines_of(decoder(40, 1, 20));
  const std::string all = text::join(lines, "\n");
  INFO(all);
  CHECK(all.find("\n  model.layers.0 to 19  ") != std::string::npos);
  CHECK(all.find("\n  model.layers.21 to 39  ") != std::string::npos);
  CHECK(all.find("\n  model.layers.20.self_attn.q_proj  ") != std::string::npos);
  CHECK(all.find("\n> ..") != std::string::npos);
  CHECK(lines.size() < 14);
}

TEST_CASE("columns stand below one another, within 100") {
  for (const int64_t dp : {1, 2, 4, 8, 16, 64}) {
    const std::vector<std::string> lines = lines_of(decoder(12, dp, 5));
    INFO(text::join(lines, "\n"));
    const size_t backward = lines.front().find("backward");
    REQUIRE(backward != std::string::npos);
    for (const std::string& line : lines) CHECK(report::display_width(line) <= 100);
    // Under its heading, what is wrong on the odd ranks.
    const auto turned =
        std::ranges::find_if(lines, [](const std::string& line) { return line[0] == '>'; });
    REQUIRE(turned != lines.end());
    CHECK(turned->find('X') >= backward);
    CHECK(turned->find('X') < lines.front().find("gradients"));
    CHECK(turned->find('.', backward) <= backward + 2);
  }
}

TEST_CASE("numbers of two digits do not run into one another") {
  Picture picture = decoder(12, 8, 5);  // 16 ranks, of one axis, each with other marks
  picture.axes = {{"dp_shard", {}}};
  for (int64_t r = 0; r < 16; ++r) {
    picture.axes[0].second.push_back(r);
    picture.lines[static_cast<size_t>(r)].forward[static_cast<size_t>(r)] = Picture::kWrong;
  }
  const std::vector<std::string> lines = lines_of(picture);
  INFO(text::join(lines, "\n"));
  for (const std::string& line : lines) CHECK(report::display_width(line) <= 100);
  CHECK(text::join(lines, "\n").find("other rank") != std::string::npos);
}

TEST_CASE("many ranks that are alike share a column, which says so") {
  const std::string all = text::join(lines_of(decoder(3, 16, 1)), "\n");
  INFO(all);
  CHECK(all.find("from rank") != std::string::npos);
  // The coordinate that they share, and "*" where they have several.
  CHECK(all.find("\n  dp_shard ") != std::string::npos);
  CHECK(all.find("* *") != std::string::npos);
  CHECK(all.find("0 1") != std::string::npos);
}

TEST_CASE("it is red where it turned, and only there") {
  const std::string all = text::join(lines_of(decoder(3, 1, 1), /*colour=*/true), "\n");
  const std::string red =
      report::paint({.colour = true, .unicode = false, .width = 100}, report::Tone::red, "X");
  CHECK(all.find(red) != std::string::npos);
  CHECK(all.find(red) == all.rfind(red));
}

TEST_CASE("it is the same after JSON") {
  const Picture picture = decoder(3, 2, 1);
  CHECK(lines_of(Picture::of(picture.json())) == lines_of(picture));
}

}  // namespace picture_test
