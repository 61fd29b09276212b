#include "engine/launch/rank_file.h"

#include <algorithm>
#include <array>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <boost/json/parse.hpp>
#include <boost/json/serialize.hpp>
#include <charconv>
#include <optional>

#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/foreign_file.h"
#include "sdk/base/files/read_file.h"

namespace meshwright::postmortem {
namespace {

namespace fs = std::filesystem;
namespace json = boost::json;
using detail::CollectiveState;

constexpr std::array kStates = {CollectiveState::starting,  CollectiveState::under_way,
                                CollectiveState::waiting,   CollectiveState::queued,
                                CollectiveState::completed, CollectiveState::failed};

json::object collective_json(const detail::LoggedCollective& one) {
  json::object out;
  if (one.number > 0) out["number"] = one.number;
  out["op"] = one.op;
  out["group"] = one.group;
  out["bytes"] = one.bytes;
  out["state"] = detail::name_of(one.state);
  out["began"] = one.began;
  if (one.waited_from > 0) out["waited_from"] = one.waited_from;
  if (one.ended > 0) out["ended"] = one.ended;
  if (!one.purpose.empty()) out["for"] = one.purpose;
  json::array messages;
  for (const detail::LoggedMessage& message : one.messages)
    messages.push_back(json::object{{message.sent ? "to" : "from", message.rank},
                                    {"number", message.number},
                                    {"bytes", message.bytes}});
  if (!messages.empty()) out["messages"] = std::move(messages);
  return out;
}

// Of an object that another program, or a crash, may have written.
class Fields {
 public:
  explicit Fields(const json::value& value) : object_(value.as_object()) {}
  int64_t number(const char* key) const { return object_.at(key).as_int64(); }
  int64_t number_or_0(const char* key) const { return object_.contains(key) ? number(key) : 0; }
  std::string text(const char* key) const { return std::string(object_.at(key).as_string()); }
  std::string text_or_none(const char* key) const {
    return object_.contains(key) ? text(key) : std::string();
  }
  bool has(const char* key) const { return object_.contains(key); }
  bool flag(const char* key) const { return object_.at(key).as_bool(); }
  const json::array& list(const char* key) const { return object_.at(key).as_array(); }
  std::vector<int64_t> numbers(const char* key) const {
    std::vector<int64_t> out;
    for (const json::value& value : list(key)) out.push_back(value.as_int64());
    return out;
  }

 private:
  const json::object& object_;
};

CollectiveState state_of(const std::string& name) {
  for (CollectiveState state : kStates)
    if (name == detail::name_of(state)) return state;
  throw Error(ErrorCode::file_unreadable, "unknown state \"" + name + "\"");
}

detail::LoggedCollective collective_of(const json::value& value, size_t groups) {
  const Fields fields(value);
  detail::LoggedCollective out;
  out.number = fields.number_or_0("number");
  out.op = fields.text("op");
  out.group = static_cast<size_t>(fields.number("group"));
  if (out.group >= groups)
    throw Error(ErrorCode::file_unreadable, "there is no group " + std::to_string(out.group));
  out.bytes = fields.number("bytes");
  out.state = state_of(fields.text("state"));
  out.began = fields.number("began");
  out.waited_from = fields.number_or_0("waited_from");
  out.ended = fields.number_or_0("ended");
  out.purpose = fields.text_or_none("for");
  if (fields.has("messages"))
    for (const json::value& one : fields.list("messages")) {
      const Fields message(one);
      const bool sent = message.has("to");
      out.messages.push_back({message.number(sent ? "to" : "from"), sent, message.number("number"),
                              message.number("bytes")});
    }
  return out;
}

std::optional<int64_t> rank_of(const std::string& name) {
  constexpr std::string_view kBegin = "rank_", kEnd = ".json";
  if (!name.starts_with(kBegin) || !name.ends_with(kEnd)) return std::nullopt;
  int64_t rank = -1;
  const char* last = name.data() + name.size() - kEnd.size();
  if (std::from_chars(name.data() + kBegin.size(), last, rank).ptr != last || rank < 0)
    return std::nullopt;
  return rank;
}

constexpr const char* kLauncherFile = "launcher.json";

std::vector<int64_t> read_stopped(const fs::path& file) {
  boost::system::error_code failed;
  const json::value value = json::parse(base::read_file(file, base::kSmallFile), failed);
  if (failed) return {};  // it is not there, as a rule
  try {
    return Fields(value).numbers("stopped");
  } catch (const std::exception&) {
    return {};
  }
}

}  // namespace

std::string file_name(int64_t rank) { return "rank_" + std::to_string(rank) + ".json"; }

// A line for each collective: such a file is also read by people.
std::string to_text(const RankFile& file) {
  json::array groups;
  for (const detail::LoggedGroup& group : file.record.groups)
    groups.push_back(
        json::object{{"axis", group.axis},
                     {"ranks", json::array(group.ranks.begin(), group.ranks.end())},
                     {"entered", group.entered},
                     {"sent", json::array(group.sent.begin(), group.sent.end())},
                     {"received", json::array(group.received.begin(), group.received.end())}});
  json::object head{
      {"rank", file.rank},       {"world", file.world},        {"host", file.host},
      {"process", file.process}, {"attempt", file.attempt},    {"why", file.why},
      {"error", file.error},     {"taken", file.record.taken}, {"groups", std::move(groups)}};
  std::string out = json::serialize(head);
  out.pop_back();
  out += ",\"collectives\":[";
  const char* between = "\n";
  for (const detail::LoggedCollective& one : file.record.collectives) {
    out += between + json::serialize(collective_json(one));
    between = ",\n";
  }
  return out + "]}\n";
}

RankFile parse(std::string_view text) {
  boost::system::error_code failed;
  const json::value value = json::parse(text, failed);
  if (failed) throw Error(ErrorCode::file_unreadable, failed.message());
  try {
    const Fields fields(value);
    RankFile out;
    out.rank = fields.number("rank");
    out.world = fields.number("world");
    out.host = fields.text("host");
    out.process = fields.number("process");
    out.attempt = fields.number("attempt");
    out.why = fields.text("why");
    out.error = fields.flag("error");
    out.record.taken = fields.number("taken");
    for (const json::value& one : fields.list("groups")) {
      const Fields group(one);
      out.record.groups.push_back({group.text("axis"), group.numbers("ranks"),
                                   group.number("entered"), group.numbers("sent"),
                                   group.numbers("received")});
      const detail::LoggedGroup& made = out.record.groups.back();
      if (made.sent.size() != made.ranks.size() || made.received.size() != made.ranks.size())
        throw Error(ErrorCode::file_unreadable, "a group's lists differ in length");
    }
    for (const json::value& one : fields.list("collectives"))
      out.record.collectives.push_back(collective_of(one, out.record.groups.size()));
    return out;
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorCode::file_unreadable, error.what());
  }
}

void write_stopped(const fs::path& folder, const std::vector<int64_t>& ranks) {
  base::write_durably(
      folder / kLauncherFile,
      json::serialize(json::object{{"stopped", json::array(ranks.begin(), ranks.end())}}) + "\n");
}

Folder read_folder(const fs::path& folder) {
  Folder out;
  out.stopped = read_stopped(folder / kLauncherFile);
  std::error_code failed;
  for (fs::directory_iterator at(folder, failed), end; !failed && at != end; at.increment(failed)) {
    const std::optional<int64_t> rank = rank_of(at->path().filename().string());
    if (!rank) continue;
    try {
      RankFile file =
          parse(base::read_foreign(at->path(), base::kSmallFile, ErrorCode::file_unreadable));
      if (file.rank != *rank)
        throw Error(ErrorCode::file_unreadable, "it is of rank " + std::to_string(file.rank));
      out.files.push_back(std::move(file));
    } catch (const Error& error) {
      std::string why = error.message().substr(0, error.message().find('\n'));
      if (const std::string begin = at->path().string() + ": "; why.starts_with(begin))
        out.problems.push_back(std::move(why));
      else
        out.problems.push_back(at->path().string() + " is damaged (" + why + ")");
    }
  }
  int64_t newest = 0;
  for (const RankFile& file : out.files) newest = std::max(newest, file.attempt);
  std::erase_if(out.files, [&](const RankFile& file) {
    if (file.attempt == newest) return false;
    out.problems.push_back((folder / file_name(file.rank)).string() + " is of attempt " +
                           std::to_string(file.attempt) + ", others of " + std::to_string(newest));
    return true;
  });
  std::sort(out.files.begin(), out.files.end(),
            [](const RankFile& a, const RankFile& b) { return a.rank < b.rank; });
  std::sort(out.problems.begin(), out.problems.end());
  return out;
}

}  // namespace meshwright::postmortem
