// Reads the help that a verb is declared by.
#include <algorithm>
#include <iterator>
#include <span>

#include "apps/cli/verb.h"
#include "sdk/base/words.h"

namespace meshwright::cli {
namespace {

constexpr std::string_view kSharedFlags = R"(
--help              Show this.
--version           Show the version.
--color WHEN=auto|always|never
                    auto (only on a terminal, without NO_COLOR), always or never.
--json              Print JSON for machines; errors too.
--set KEY=VALUE...  Override any key of the file, for example distributed.tp_size=2. Repeatable.
--world-size N      Number of ranks. Default: WORLD_SIZE of the environment, else 1.
)";

bool take_suffix(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

// "SHELL=bash|zsh": the words, which are taken from it.
std::vector<std::string> take_choices(std::string& name) {
  const size_t begin = name.find('=');
  if (begin == name.npos || name.find('|', begin) == name.npos) return {};
  std::vector<std::string> out = text::split(std::string_view(name).substr(begin + 1), '|');
  name.resize(begin);
  return out;
}

// "FOLDER", "[FOLDER]", "FILES..."
Positional positional_of(std::string_view word) {
  Positional out;
  out.required = !word.starts_with('[');
  if (!out.required) word = word.substr(1, word.size() - 2);
  out.repeats = take_suffix(word, "...");
  out.name = word;
  out.choices = take_choices(out.name);
  return out;
}

// "--shard-size SIZE  Most bytes of one file."
Flag flag_of(std::string_view line) {
  line.remove_prefix(2);
  size_t gap = std::min(line.find("  "), line.size());
  std::string_view head = line.substr(0, gap);
  Flag out;
  out.doc = text::trim(line.substr(gap));
  out.repeats = take_suffix(head, "...");
  size_t space = std::min(head.find(' '), head.size());
  out.name = head.substr(0, space);
  out.argument = text::trim(head.substr(space));
  out.choices = take_choices(out.argument);
  return out;
}

std::vector<Flag> flags_in(const std::vector<std::string>& lines) {
  std::vector<Flag> out;
  for (const std::string& line : lines)
    if (line.starts_with("--"))
      out.push_back(flag_of(line));
    else if (line.starts_with(' '))
      out.back().doc += (out.back().doc.empty() ? "" : " ") + std::string(text::trim(line));
  return out;
}

}  // namespace

const Flag& shared_flag(std::string_view name) {
  static const std::vector<Flag> all = flags_in(text::split(kSharedFlags, '\n'));
  for (const Flag& flag : all)
    if (flag.name == name) return flag;
  throw Error(ErrorCode::internal, "no text says what --" + std::string(name) + " does");
}

Verb declare(int (*run)(Call& call), std::string_view help) {
  std::vector<std::string> lines = text::split(text::trim(help), '\n');
  Verb verb;
  verb.run = run;
  for (const std::string& word : text::split(lines.at(0), ' '))
    if (text::is_identifier(word))
      verb.name += (verb.name.empty() ? "" : " ") + word;
    else
      verb.positionals.push_back(positional_of(word));
  verb.summary = lines.at(1);
  auto flags = std::find_if(lines.begin() + 2, lines.end(),
                            [](const std::string& line) { return line.starts_with("--"); });
  auto begin = lines.begin() + 2, end = flags;
  while (begin != end && begin->empty()) ++begin;
  while (begin != end && std::prev(end)->empty()) --end;
  verb.details = text::join(std::span(begin, end), "\n");
  for (const Flag& flag : flags_in({flags, lines.end()}))
    verb.flags.push_back(flag.doc.empty() ? shared_flag(flag.name) : flag);
  return verb;
}

}  // namespace meshwright::cli
