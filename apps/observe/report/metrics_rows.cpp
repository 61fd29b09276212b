#include <array>
#include <boost/json/monotonic_resource.hpp>
#include <boost/json/parse.hpp>
#include <optional>
#include <string_view>

#include "apps/observe/monitors/row.h"
#include "apps/observe/report/run_record.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/terminal/report.h"

namespace meshwright::runs {

const QuantityInfo& info_of(Quantity quantity) {
  static constexpr QuantityInfo kInfos[kQuantities] = {
      {.key = "loss", .title = "Loss", .unit = "", .may_be_log = true},
      {.key = "validation_loss", .title = "Validation loss", .unit = "", .may_be_log = true},
      {.key = "grad_norm", .title = "Gradient norm", .unit = "", .may_be_log = true},
      {.key = "lr", .title = "Learning rate", .unit = ""},
      {.key = "tokens_per_second", .title = "Tokens a second", .unit = ""},
      {.key = "step_ms", .title = "Time of a step", .unit = "ms", .may_be_log = true},
      {.key = "rank_work_ms",
       .title = "Work of ranks in a step",
       .unit = "ms",
       .may_be_log = true,
       .may_be_unknown = true},
      {.key = "mfu", .title = "MFU, share of the peak", .unit = "", .may_be_unknown = true},
      {.key = "exposed_comm_ms",
       .title = "Exposed communication of rank 0",
       .unit = "ms",
       .news = true,
       .may_be_unknown = true},
      {.key = "slowest_ms",
       .title = "Slowest rank beside the median",
       .unit = "ms",
       .news = true,
       .may_be_unknown = true},
      {.key = "memory_bytes", .title = "Memory of rank 0, peak", .unit = "", .bytes = true},
      {.key = "expert_imbalance", .title = "Fullest expert beside the mean", .unit = "times"},
      {.key = "dropped_tokens", .title = "Tokens that no expert took", .unit = "", .news = true},
  };
  return kInfos[static_cast<size_t>(quantity)];
}

namespace {

namespace json = boost::json;

double number_or(const json::object& fields, const char* key, double otherwise) {
  const json::value* found = fields.if_contains(key);
  return found != nullptr && found->is_number() ? found->to_number<double>() : otherwise;
}

class Reader {
 public:
  explicit Reader(std::string file) : file_(std::move(file)) {}

  // An error in words; empty: the row was taken.
  std::string take(std::string_view line) {
    unsigned char room[8192];
    json::monotonic_resource memory(room, sizeof room);
    boost::system::error_code failed;
    const json::value row = json::parse(line, failed, &memory);
    if (failed) return "is not valid JSON (" + failed.message() + ")";
    const json::object* fields = row.if_object();
    const json::value* number = fields == nullptr ? nullptr : fields->if_contains("step");
    if (number == nullptr || !number->is_int64() || number->as_int64() < 0)
      return "is not a row: it has no step";
    const double step = static_cast<double>(number->as_int64()) + 1;
    // A row is taken whole or not at all.
    std::array<std::optional<double>, kQuantities> values;
    for (size_t i = 0; i < kQuantities; ++i) {
      const Series& series = out_.series[i];
      const QuantityInfo& info = info_of(static_cast<Quantity>(i));
      const json::value* found = fields->if_contains(info.key);
      if (found == nullptr || (info.may_be_unknown && found->is_null())) continue;
      values[i] = monitor::number_of(*found);
      if (!values[i]) return std::string(info.key) + " is no number";
      if (!series.empty() && step <= series.steps.back())
        return "goes back to step " + std::to_string(number->as_int64()) + ", which was there";
      // A share above 1 is of a peak that was measured too low, as older versions wrote it.
      if (static_cast<Quantity>(i) == Quantity::mfu && *values[i] > 1) values[i].reset();
    }
    for (size_t i = 0; i < kQuantities; ++i)
      if (values[i]) out_.series[i].add(step, *values[i]);
    if (const auto& work = values[static_cast<size_t>(Quantity::rank_work_ms)]) {
      out_.least_work.add(step, number_or(*fields, "rank_work_ms_least", *work));
      out_.most_work.add(step, number_or(*fields, "rank_work_ms_most", *work));
    }
    if (const json::value* tokens = fields->if_contains("tokens");
        tokens != nullptr && tokens->is_number())
      out_.tokens += tokens->to_number<double>();
    return {};
  }

  // `taken`: gets the rows that were, as they stand there; nullptr: nobody wants them.
  Metrics read(std::string_view text, std::vector<std::string>& problems, std::string* taken) {
    int64_t line = 0, broken = 0, first_broken = 0;
    std::string why;
    while (!text.empty()) {
      ++line;
      const size_t end = text.find('\n');
      if (end == std::string_view::npos) {
        // The last line of a run that writes at this moment, or that died while it did.
        problems.push_back(file_ + " ends in the middle of line " + std::to_string(line) +
                           ", which is left out");
        break;
      }
      std::string said = take(text.substr(0, end));
      if (said.empty() && taken != nullptr) taken->append(text.substr(0, end + 1));
      text.remove_prefix(end + 1);
      if (said.empty()) continue;
      if (++broken == 1) why = std::move(said), first_broken = line;
    }
    if (broken > 0)
      problems.push_back(file_ + ": line " + std::to_string(first_broken) + " " + why +
                         (broken == 1
                              ? "; it is left out"
                              : "; " + report::human_count(broken) + " such lines are left out"));
    return std::move(out_);
  }

 private:
  std::string file_;
  Metrics out_;
};

}  // namespace

Metrics read_metrics(const std::filesystem::path& file, std::vector<std::string>& problems) {
  base::ForeignFile opened(file);
  const std::string text = opened.read(base::kLargeFile);
  if (!opened.problem().empty()) problems.push_back(file.string() + " " + opened.problem());
  return Reader(file.string()).read(text, problems, nullptr);
}

std::string metrics_taken(const std::filesystem::path& file) {
  std::vector<std::string> problems;
  std::string out;
  Reader(file.string()).read(base::ForeignFile(file).read(base::kLargeFile), problems, &out);
  return out;
}

}  // namespace meshwright::runs
