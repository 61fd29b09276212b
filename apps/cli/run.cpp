#include <algorithm>
#include <boost/program_options/errors.hpp>
#include <boost/program_options/options_description.hpp>
#include <boost/program_options/parsers.hpp>
#include <boost/program_options/positional_options.hpp>
#include <boost/program_options/value_semantic.hpp>
#include <csignal>
#include <exception>
#include <string>
#include <string_view>

#include "apps/cli/verb.h"
#include "meshwright/abi.h"
#include "sdk/base/plugin_at_work.h"
#include "sdk/base/used_up.h"

namespace meshwright::cli {

// The help texts, made from the verbs' descriptions.

std::string group_help(const report::Style& style, std::string_view group);  // "plugins", "config"

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

// "meshwright plan [FILE] [--world-size N] ..."
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
         "  meshwright quickstart                       a first small model, in seconds\n"
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

namespace {

namespace po = boost::program_options;
using Words = std::vector<std::string>;

bool is_help(const std::string& word) { return word == "-h" || word == "--help"; }

// `words` begins with the words of the verb's name.
bool starts_with_verb(const Words& words, const std::string& name) {
  size_t space = name.find(' ');
  if (words.empty() || words[0] != name.substr(0, space)) return false;
  return space == std::string::npos || (words.size() > 1 && words[1] == name.substr(space + 1));
}

bool is_group(const std::string& word) {
  return std::any_of(verbs().begin(), verbs().end(),
                     [&](const Verb& verb) { return verb.name.starts_with(word + ' '); });
}

Error unknown_verb(const Words& words) {
  std::string group = is_group(words[0]) && words.size() > 1 ? words[0] : std::string();
  std::string given = group.empty() ? words[0] : group + ' ' + words[1];
  std::vector<std::string> names;
  for (const Verb& verb : verbs()) {
    if (group.empty()) names.push_back(verb.name.substr(0, verb.name.find(' ')));
    if (verb.name.starts_with(group)) names.push_back(verb.name);
  }
  Error error(ErrorCode::usage, "no such verb: " + given);
  if (std::string near = nearest_name(given, names); !near.empty())
    error.help("did you mean meshwright " + near + "?");
  return error.help(group.empty() ? "meshwright -h lists the verbs"
                                  : "meshwright " + group + " -h lists its verbs");
}

Error wrong_usage(const Verb& verb, std::string message) {
  return Error(ErrorCode::usage, std::move(message))
      .help("usage: " + usage_line(verb))
      .help("meshwright " + verb.name + " -h explains the flags");
}

// Fills the call's flags and positionals. Throws Error(usage).
void parse(const Verb& verb, const Words& arguments, Call& call) {
  po::options_description description;
  description.add_options()("help,h", "")("color", po::value<std::string>(), "")(
      "positional", po::value<Words>(), "");
  for (const Flag& flag : verb.flags)
    flag.argument.empty() ? description.add_options()(flag.name.c_str(), "")
                          : description.add_options()(flag.name.c_str(), po::value<Words>(), "");
  po::positional_options_description positional;
  positional.add("positional", -1);
  using namespace po::command_line_style;
  try {
    auto parsed = po::command_line_parser(arguments)
                      .options(description)
                      .positional(positional)
                      .style(unix_style & ~allow_guessing)
                      .run();
    for (const po::option& option : parsed.options) {
      if (option.string_key == "positional") {
        call.positionals.insert(call.positionals.end(), option.value.begin(), option.value.end());
        continue;
      }
      Words& values = call.flags[option.string_key];
      bool repeats = std::any_of(verb.flags.begin(), verb.flags.end(), [&](const Flag& f) {
        return option.string_key == f.name && f.repeats;
      });
      if (!values.empty() && !repeats)
        throw wrong_usage(verb, "--" + option.string_key + " stands twice");
      values.insert(values.end(), option.value.begin(), option.value.end());
    }
  } catch (const po::unknown_option& error) {
    throw unknown_flag(verb, error.get_option_name(), arguments);
  } catch (const po::error& error) {
    std::string message = error.what();
    throw wrong_usage(verb, "meshwright " + verb.name + ": " + message);
  }
  if (call.has("help")) return;
  for (const std::string& word : call.positionals)
    if (std::optional<Error> error = setting_as_word(verb, word)) throw *error;
  bool any_number = !verb.positionals.empty() && verb.positionals.back().repeats;
  if (call.positionals.size() > verb.positionals.size() && !any_number) {
    if (std::optional<Error> error = setting_in_two_words(verb, arguments, call.positionals))
      throw *error;
    throw wrong_usage(verb, "meshwright " + verb.name + " has no use for \"" +
                                call.positionals[verb.positionals.size()] + "\"");
  }
  for (size_t i = call.positionals.size(); i < verb.positionals.size(); ++i)
    if (verb.positionals[i].required)
      throw wrong_usage(verb, "meshwright " + verb.name + " wants " + verb.positionals[i].name);
}

void choose_colours(Call& call) {
  if (!call.has("color")) return;
  std::string when = call.value("color");
  if (when == "auto") return;
  if (when != "always" && when != "never")
    throw Error(ErrorCode::usage, "--color wants auto, always or never, found \"" + when + "\"")
        .help("--color auto")
        .help("--color never");
  call.out_style.colour = call.err_style.colour = when == "always";
}

int dispatch(Words words, Call& call) {
  // Global flags may stand before the verb.
  Words before;
  while (!words.empty() && words[0].starts_with("--color")) {
    size_t take = words[0] == "--color" && words.size() > 1 ? 2 : 1;
    before.insert(before.end(), words.begin(), words.begin() + static_cast<ptrdiff_t>(take));
    words.erase(words.begin(), words.begin() + static_cast<ptrdiff_t>(take));
  }
  if (words.empty()) {
    call.err.write(program_help(call.err_style));
    return exit_status(ErrorCode::usage);
  }
  if (is_help(words[0])) return call.out.write(program_help(call.out_style)), 0;
  if (words[0] == "--version") return call.out.write("meshwright " MESHWRIGHT_VERSION "\n"), 0;
  if (words[0].starts_with('-')) {
    Error error(ErrorCode::usage, "no verb, but the flag " + words[0]);
    const Words known = {"--help", "--version", "--color"};
    if (std::string near = nearest_name(words[0], known); !near.empty())
      error.help("did you mean " + near + "?");
    throw error.help("meshwright VERB " + words[0] + " if it is a flag of a verb")
        .help("meshwright -h lists the verbs");
  }
  for (const Verb& verb : verbs()) {
    if (!starts_with_verb(words, verb.name)) continue;
    size_t taken = verb.name.find(' ') == std::string::npos ? 1 : 2;
    words.erase(words.begin(), words.begin() + static_cast<ptrdiff_t>(taken));
    words.insert(words.begin(), before.begin(), before.end());
    parse(verb, words, call);
    choose_colours(call);
    if (call.has("help")) return call.out.write(verb_help(call.out_style, verb)), 0;
    return verb.run(call);
  }
  if (is_group(words[0]) && words.size() == 1) {
    call.err.write(group_help(call.err_style, words[0]));
    return exit_status(ErrorCode::usage);
  }
  if (is_group(words[0]) && is_help(words[1]))
    return call.out.write(group_help(call.out_style, words[0])), 0;
  throw unknown_verb(words);
}

// What `body` returns, or the exit status of what it throws after printing it.
template <class Body>
int guard(Call& call, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    return call.fail({&error, 1});
  } catch (const report::WriteFailed&) {
    throw;
  } catch (const std::exception& exception) {
    const Error error =
        detail::used_up(exception).value_or(Error(ErrorCode::internal, exception.what()));
    return call.fail({&error, 1});
  }
}

std::terminate_handler g_ends_before = nullptr;

// An exception in a thread that is not ours (gloo's, of connections) ends the process: one of a
// limit is told as everywhere else.
[[noreturn]] void end_by_exception() {
  if (const std::exception_ptr thrown = std::current_exception()) try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& exception) {
      if (const std::optional<Error> limit = detail::used_up(exception)) {
        const std::string text = report::format_error(report::style_of(stderr), *limit);
        std::fwrite(text.data(), 1, text.size(), stderr);
        std::_Exit(exit_status(limit->code()));
      }
    } catch (...) {  // the one before knows
    }
  g_ends_before();
  std::abort();
}

}  // namespace

int run(int argc, const char* const* argv) {
  // A reader that goes away and a file beyond RLIMIT_FSIZE are failed writes like others, not
  // signals.
  for (int signal : {SIGPIPE, SIGXFSZ}) std::signal(signal, SIG_IGN);
  g_ends_before = std::set_terminate(end_by_exception);
  report::Output out(stdout, "standard output"),
      err(stderr, "standard error", report::Output::Loss::ignored);
  Words words(argv + std::min(argc, 1), argv + argc);
  Call call{.out = out,
            .err = err,
            .out_style = report::style_of(stdout),
            .err_style = report::style_of(stderr)};
  // Known before the flags are parsed, so that mistakes among them are JSON too.
  call.json = std::find(words.begin(), words.end(), "--json") != words.end();
  detail::PluginWatch watch;
  try {
    int status = guard(call, [&] { return dispatch(words, call); });
    out.flush();
    err.flush();
    return status;
  } catch (const report::WriteFailed& failure) {
    // Nothing of the half-written buffer may be tried again at exit. A reader that went away ends
    // others by its signal.
    if (failure.closed_pipe()) std::_Exit(128 + SIGPIPE);
    std::fprintf(stderr, "error[%s]: %s\n", code_string(ErrorCode::internal).c_str(),
                 failure.what());
    std::_Exit(exit_status(ErrorCode::internal));
  }
}

}  // namespace meshwright::cli
