#include "engine/cli/help.h"

#include <algorithm>

#include "meshwright/abi.h"

namespace meshwright::cli {
namespace {

using report::Style;
using report::Tone;

struct Entry {
  std::string left, right;
};

Entry entry_of(const Flag& flag) {
  std::string left = (flag.name == "help" ? "-h, --" : "    --") + flag.name;
  if (!flag.argument.empty()) left += " " + flag.argument;
  return {left, flag.doc};
}

// " FILE", " [FOLDER]", " FILES..."
std::string positionals_text(const Verb& verb) {
  std::string text;
  for (const Positional& positional : verb.positionals)
    text += (positional.required ? " " : " [") + positional.name +
            (positional.repeats ? "..." : "") + (positional.required ? "" : "]");
  return text;
}

// Two columns, the right one wrapped.
std::string entries(const Style& style, const std::vector<Entry>& list) {
  size_t left = 0;
  for (const Entry& entry : list) left = std::max(left, report::display_width(entry.left));
  std::string out;
  for (const Entry& entry : list) {
    size_t indent = left + 4;
    std::vector<std::string> lines =
        report::wrap(entry.right, std::max<size_t>(20, static_cast<size_t>(style.width) - indent));
    out += "  " + paint(style, Tone::cyan, entry.left) +
           std::string(left - report::display_width(entry.left) + 2, ' ') + lines[0] + '\n';
    for (size_t i = 1; i < lines.size(); ++i) out += std::string(indent, ' ') + lines[i] + '\n';
  }
  return out;
}

std::string heading(const Style& style, std::string_view text) {
  return '\n' + paint(style, Tone::bold, text) + '\n';
}

std::vector<Entry> verb_entries(std::string_view group) {
  std::vector<Entry> list;
  for (const Verb& verb : verbs()) {
    if (!group.empty() && !verb.name.starts_with(std::string(group) + ' ')) continue;
    list.push_back({verb.name + positionals_text(verb), verb.summary});
  }
  return list;
}

// Paragraphs are wrapped: a line that ends no sentence goes on in the next. Lines that start with a
// space are kept (examples).
std::string paragraphs(const Style& style, std::string_view text) {
  std::string out, paragraph;
  auto end_paragraph = [&] {
    if (paragraph.empty()) return;
    for (const std::string& piece : report::wrap(paragraph, static_cast<size_t>(style.width)))
      out += piece + '\n';
    paragraph.clear();
  };
  while (!text.empty()) {
    size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.empty() || line.starts_with(' ')) {
      end_paragraph();
      out += std::string(line) + '\n';
      continue;
    }
    paragraph += (paragraph.empty() ? "" : " ") + std::string(line);
    if (line.ends_with('.') || line.ends_with(':')) end_paragraph();
  }
  end_paragraph();
  return out;
}

}  // namespace

std::string usage_line(const Verb& verb) {
  return "meshwright " + verb.name + positionals_text(verb) +
         (verb.flags.empty() ? "" : " [flags]");
}

std::string program_help(const Style& style) {
  std::string out = paint(style, Tone::bold, "meshwright") +
                    " " MESHWRIGHT_VERSION ": train models under swappable parallel strategies\n";
  out += heading(style, "Usage") + "  meshwright VERB [arguments] [flags]\n";
  out += heading(style, "Verbs") + entries(style, verb_entries({}));
  out += heading(style, "Flags") +
         entries(style, {{"-h, --help", "Show this; after a verb, the help of the verb."},
                         entry_of(shared_flag("version")),
                         entry_of(shared_flag("color"))});
  out += heading(style, "First steps") +
         "  meshwright plan job.toml --world-size 64    how the job would be laid out\n"
         "  meshwright validate job.toml                what is wrong with the file\n"
         "  meshwright config explain distributed       what may stand in a table\n";
  return out;
}

std::string group_help(const Style& style, std::string_view group) {
  return paint(style, Tone::bold, "Usage") + "  meshwright " + std::string(group) +
         " VERB [arguments] [flags]\n" + heading(style, "Verbs") +
         entries(style, verb_entries(group));
}

std::string verb_help(const Style& style, const Verb& verb) {
  std::string out = paint(style, Tone::bold, "Usage") + "  " + usage_line(verb) + "\n\n" +
                    paragraphs(style, verb.summary + ".");
  if (!verb.details.empty()) out += '\n' + paragraphs(style, verb.details);
  std::vector<Entry> flags;
  for (const Flag& flag : verb.flags)
    if (!flag.hidden) flags.push_back(entry_of(flag));
  flags.push_back(entry_of(shared_flag("color")));
  flags.push_back(entry_of(shared_flag("help")));
  return out + heading(style, "Flags") + entries(style, flags);
}

}  // namespace meshwright::cli
