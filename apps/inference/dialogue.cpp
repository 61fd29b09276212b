#include "apps/inference/dialogue.h"

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <system_error>
#include <utility>
#include <vector>

#include "meshwright/error.h"
#include "sdk/base/files/durable.h"
#include "sdk/base/files/utf8.h"
#include "sdk/base/terminal/report.h"
#include "sdk/base/words.h"

namespace meshwright::generate {

namespace {

struct Command {
  const char *name, *argument, *does;
};
constexpr Command kCommands[] = {
    {"/help", "", "show this"},
    {"/reset", "", "begin anew; the system message stays"},
    {"/system", "TEXT", "what the model is told before all else; without TEXT nothing is"},
    {"/save", "FILE", "write the messages as JSON, which generate --messages reads"},
    {"/exit", "", "end; so does Ctrl-D"}};

bool has_role(const chat::Value& message, const char* role) {
  return message.get("role")->as_string() == role;
}

}  // namespace

Dialogue::Dialogue(const std::optional<std::string>& system,
                   std::function<void(const std::string&)> tell)
    : tell_(std::move(tell)) {
  if (system) set_system(*system);
}

bool Dialogue::has_system() const {
  const chat::Value::List& all = said_.messages.as_list();
  return !all.empty() && has_role(all[0], "system");
}

void Dialogue::set_system(const std::string& text) {
  chat::Value::List& all = said_.messages.as_list();
  if (has_system()) all.erase(all.begin());
  if (!text.empty()) all.insert(all.begin(), message_of("system", text));
}

void Dialogue::help() const {
  for (const Command& one : kCommands) {
    const std::string head = std::string(one.name) + " " + one.argument;
    tell_(head + std::string(14 - head.size(), ' ') + one.does);
  }
  tell_("Ctrl-C stops an answer. A message that begins with a slash begins with two: //");
}

void Dialogue::save(const std::string& file) {
  if (file.empty()) return tell_("/save wants a file: /save talk.json");
  std::error_code failed;
  if (std::filesystem::exists(file, failed))
    return tell_(file + " is there already: name another one");
  boost::json::array all;
  for (const chat::Value& one : said_.messages.as_list())
    all.push_back(
        {{"role", one.get("role")->as_string()}, {"content", one.get("content")->as_string()}});
  const size_t count = all.size();
  try {
    base::write_durably(file, report::pretty_json(all));
    tell_("wrote " + file + ", " +
          report::counted(static_cast<int64_t>(count), "message", "messages"));
  } catch (const Error& error) {
    tell_(error.message());
  }
}

Dialogue::Wants Dialogue::take(const std::string& line) {
  if (base::first_invalid(line) != line.size()) {
    tell_("this line is no UTF-8, and is left out");
    return Wants::nothing;
  }
  const std::string_view trimmed = text::trim(line);
  if (trimmed.empty()) return Wants::nothing;
  if (!trimmed.starts_with('/') || trimmed.starts_with("//")) {
    said_.messages.push_back(
        message_of("user", std::string(trimmed.starts_with("//") ? trimmed.substr(1) : line)));
    return Wants::answer;
  }
  const size_t blank = trimmed.find_first_of(" \t");
  const std::string name(trimmed.substr(0, blank));
  const std::string rest(blank == trimmed.npos ? "" : text::trim(trimmed.substr(blank)));
  if (name == "/exit" || name == "/quit") return Wants::end;
  if (name == "/help") {
    help();
  } else if (name == "/reset") {
    const bool keeps = has_system();
    said_.messages.as_list().resize(keeps ? 1 : 0);
    forgotten_ = 0;
    tell_(keeps ? "a new conversation, with the same system message" : "a new conversation");
  } else if (name == "/system") {
    set_system(rest);
    tell_(rest.empty() ? "no system message" : "the system message is set");
  } else if (name == "/save") {
    save(rest);
  } else {
    std::vector<std::string> names;
    for (const Command& one : kCommands) names.emplace_back(one.name);
    const std::string near = nearest_name(name, names);
    tell_("there is no command " + name +
          (near.empty() ? ": /help lists them" : ": did you mean " + near + "?"));
  }
  return Wants::nothing;
}

void Dialogue::answered(const std::string& text) {
  said_.messages.push_back(message_of("assistant", text));
}

void Dialogue::take_back() { said_.messages.as_list().pop_back(); }

Conversation Dialogue::last_alone() const {
  const chat::Value::List& all = said_.messages.as_list();
  Conversation out;
  if (has_system()) out.messages.push_back(all.front());
  out.messages.push_back(all.back());
  return out;
}

bool Dialogue::forget_first() {
  const chat::Value::List& all = said_.messages.as_list();
  const size_t first = (has_system() ? 1 : 0) + forgotten_;
  size_t next = first;
  while (next < all.size() && (next == first || !has_role(all[next], "user"))) ++next;
  if (next >= all.size()) return false;
  forgotten_ += next - first;
  return true;
}

Conversation Dialogue::conversation() const {
  Conversation out = said_;
  chat::Value::List& all = out.messages.as_list();
  const auto first = all.begin() + (has_system() ? 1 : 0);
  all.erase(first, first + static_cast<std::ptrdiff_t>(forgotten_));
  return out;
}

}  // namespace meshwright::generate
