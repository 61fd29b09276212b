#include "engine/train/run/expert_load.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <cmath>
#include <numeric>

#include "sdk/base/plain_text.h"

namespace meshwright::train {

namespace {

int64_t sum_of(const std::vector<int64_t>& tokens) {
  return std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
}

std::string ratio(double value) { return text::format("%.2f", value); }

double largest_imbalance(const std::vector<ExpertLoad>& blocks) {
  double out = 0;
  for (const ExpertLoad& block : blocks) out = std::max(out, block.imbalance());
  return out;
}

// A load beside the mean: nothing, then eight heights up to twice the mean and more, the mean
// itself at half.
std::string mark(const report::Style& style, double beside_mean) {
  constexpr const char* kBlocks[] = {"·", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  constexpr const char* kPlain[] = {".", "1", "2", "3", "4", "5", "6", "7", "8"};
  int height =
      beside_mean <= 0 ? 0 : std::clamp(static_cast<int>(std::lround(beside_mean * 4)), 1, 8);
  const char* text = style.unicode ? kBlocks[height] : kPlain[height];
  report::Tone tone = height == 0 || height == 8 ? report::Tone::red
                      : height < 3 || height > 5 ? report::Tone::yellow
                                                 : report::Tone::green;
  return report::paint(style, tone, text);
}

}  // namespace

void LoadHistory::add(const StepResult& result) {
  if (result.experts.empty()) return;
  ++steps_;
  if (total_.empty()) {
    total_ = result.experts;
    return;
  }
  for (size_t b = 0; b < total_.size(); ++b)
    for (size_t e = 0; e < total_[b].tokens.size(); ++e)
      total_[b].tokens[e] += result.experts[b].tokens[e];
}

std::string LoadHistory::draw(const report::Style& style) const {
  if (total_.empty()) return "";
  constexpr size_t kMost = 16;
  std::vector<const ExpertLoad*> rows;
  for (const ExpertLoad& block : total_) rows.push_back(&block);
  std::string rest;
  if (rows.size() > kMost) {
    std::vector<const ExpertLoad*> worst = rows;
    std::stable_sort(worst.begin(), worst.end(), [](const ExpertLoad* a, const ExpertLoad* b) {
      return a->imbalance() > b->imbalance();
    });
    double bound = worst[kMost]->imbalance();
    worst.resize(kMost);
    std::erase_if(rows, [&](const ExpertLoad* row) {
      return std::find(worst.begin(), worst.end(), row) == worst.end();
    });
    rest = "and " + std::to_string(total_.size() - kMost) + " more blocks, none above " +
           ratio(bound) + "x\n";
  }
  size_t name = 5;
  for (const ExpertLoad* row : rows)
    name = std::max(name, report::display_width(report::printable(row->block)));
  std::string out = "expert load over " + report::counted(steps_, "step", "steps") +
                    " beside the mean (" + mark(style, 0) + " none, " + mark(style, 1) + " mean, " +
                    mark(style, 2) + " 2x and more)\n";
  constexpr size_t kNumbers = 30;  // room for what stands behind the marks
  size_t width =
      std::max<size_t>(static_cast<size_t>(std::max(style.width, 0)), name + kNumbers + 10) - name -
      kNumbers - 2;
  for (const ExpertLoad* row : rows) {
    size_t experts = row->tokens.size(), together = (experts + width - 1) / width;
    double mean = static_cast<double>(sum_of(row->tokens)) / static_cast<double>(experts);
    std::string marks;
    for (size_t e = 0; e < experts; e += together) {
      int64_t most = *std::max_element(
          row->tokens.begin() + static_cast<int64_t>(e),
          row->tokens.begin() + static_cast<int64_t>(std::min(e + together, experts)));
      marks += mark(style, mean > 0 ? static_cast<double>(most) / mean : 0);
    }
    auto unused = std::count(row->tokens.begin(), row->tokens.end(), int64_t{0});
    out += report::pad(report::printable(row->block), name) + "  " + marks + "  up to " +
           ratio(row->imbalance()) + "x" +
           (unused > 0 ? ", " + std::to_string(unused) + " unused" : "") + "\n";
  }
  out += rest;
  out.pop_back();
  return out;
}

std::string LoadHistory::json() const {
  namespace bj = boost::json;
  bj::array blocks;
  for (const ExpertLoad& block : total_)
    blocks.push_back(bj::object{{"block", report::printable(block.block)},
                                {"experts_per_token", block.active},
                                {"tokens", bj::array(block.tokens.begin(), block.tokens.end())},
                                {"imbalance", block.imbalance()}});
  return report::pretty_json(bj::object{{"steps", steps_}, {"blocks", blocks}});
}

std::string load_fields(const StepResult& result) {
  if (result.experts.empty()) return "";
  std::vector<int64_t> tokens;
  std::string imbalance;
  int64_t dropped = 0;
  for (const ExpertLoad& block : result.experts) {
    tokens.resize(std::max(tokens.size(), block.tokens.size()));
    for (size_t e = 0; e < block.tokens.size(); ++e) tokens[e] += block.tokens[e];
    dropped += result.positions * block.active - sum_of(block.tokens);
    imbalance += (imbalance.empty() ? "" : ", ") + text::format("%.4f", block.imbalance());
  }
  std::string all;
  for (int64_t n : tokens) all += (all.empty() ? "" : ", ") + std::to_string(n);
  return ", \"expert_tokens\": [" + all + "], \"expert_imbalance\": [" + imbalance +
         "], \"dropped_tokens\": " + std::to_string(dropped);
}

std::string load_words(const StepResult& result) {
  return result.experts.empty()
             ? ""
             : "  experts up to " + ratio(largest_imbalance(result.experts)) + "x";
}

}  // namespace meshwright::train
