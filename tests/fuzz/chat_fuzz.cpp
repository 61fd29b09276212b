// chat_fuzz COUNT SEED SECONDS FILE...: chat templates and rows of the FILEs (as
// sdk/text/chat/tests/chat-golden.json and semantics.json have them), changed in thousands of ways
// and rendered.
//
// Each input is either rendered, and then its origins, generation blocks and spans lie within the
// text in order, or refused with an Error of exit status 7. Anything else ends the run with the
// seed, which makes the input again: a crash (run it under the address and undefined-behaviour
// sanitizers), another exception, or more than a minute of the processor. SECONDS ends the run
// early.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "fuzz.h"
#include "meshwright/error.h"
#include "sdk/text/chat/chat_template.h"
#include "sdk/text/chat/value.h"

namespace {

using namespace meshwright;
using fuzz::Random;

struct Seeds {
  std::vector<std::string> templates, rows;
};

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// The conversations of a file as JSON: the text between its "conversations" and "tools".
void collect(const std::string& path, Seeds& seeds) {
  std::string text = text_of(path);
  chat::Value file = chat::parse_json(text);
  auto source = [&](const chat::Value* one) {
    if (one != nullptr && one->is_string()) seeds.templates.push_back(one->as_string());
  };
  if (const chat::Value* templates = file.get("templates"))
    for (const auto& [name, one] : templates->as_dict()) source(one.get("source"));
  for (const char* list : {"jinja", "cases"})
    if (const chat::Value* cases = file.get(list))
      for (const chat::Value& one : cases->as_list()) source(one.get("template"));
  size_t begin = text.find("\"conversations\""), end = text.find("\"tools\": [");
  if (begin == std::string::npos || end == std::string::npos || end < begin) return;
  begin = text.find('{', begin);
  std::string conversations = text.substr(begin, text.rfind('}', end) + 1 - begin);
  seeds.rows.push_back(conversations);
}

// Bits of Jinja, to be put anywhere.
// clang-format off
constexpr std::string_view kPieces[] = {
    "{{", "}}", "{%", "%}", "{#", "#}", "{%-", "-%}", "|", ".", "(", ")", "[", "]", "{", "}", "'",
    "\"", "~", "+", "-", "*", "**", "//", "%", "==", "<", ":", ",", "=", " in ", " not ", " is ",
    " if ", " else ", " and ", " or ", "[::-1]", "[1:]", "[-1]", "loop.last", "loop.nextitem",
    "loop.length", "loop.cycle(1,2)", "loop(messages)", "messages", "message", "ns", "range(9)",
    "range(99999)", "|tojson", "|tojson(indent=2)", "|trim", "|list", "|length", "|sort",
    "|join(',')", "|map(attribute='role')", "|selectattr('role', 'equalto', 'user')", "|dictsort",
    "|upper", "|title", "|int", "|float", "|round(2)", "|indent", "|replace('', 'x')", "|unique",
    "|batch(2)", "|groupby('role')", ".split()", ".split('x')", ".strip()", ".format(1, a=2)",
    ".items()", ".get('role')", ".append(1)", "{% for x in messages recursive %}", "{% endfor %}",
    "{% if true %}", "{% endif %}", "{% macro m(a, b=1) %}", "{% endmacro %}", "{{ m(1) }}",
    "{% call m(2) %}", "{% endcall %}", "{% generation %}", "{% endgeneration %}",
    "{% set x = x ~ x %}", "{% set ns.x = [ns.x] %}", "{% break %}", "{% continue %}",
    "{% raw %}", "{% endraw %}", "{% filter upper %}", "{% endfilter %}", "9223372036854775807",
    "-9223372036854775808", "1e308", "1e-5", "0", "99999999999999999999", "none", "true",
    "'\\u00e9\\U0001f642'", "\xc3\xa9", "\xf0\x9f\x99\x82", "\xff", "namespace(x=1)", "((((((((",
    "[[[[[[[[", "{% if x %}{% if x %}{% if x %}", "a.b.c.d.e.f.g", "not not not not ", "- - - - "};
// clang-format on

std::string mutated_template(std::string text, const Seeds& seeds, Random& random) {
  for (size_t rounds = 1 + random.below(4); rounds > 0; --rounds) {
    size_t at = random.below(text.size() + 1);
    std::string_view piece = kPieces[random.below(std::size(kPieces))];
    switch (random.below(7)) {
      case 0:
      case 1:
        text.insert(at, piece);
        break;
      case 2:
        text.replace(at, random.below(12), piece);
        break;
      case 3: {  // a part of another
        const std::string& other = seeds.templates[random.below(seeds.templates.size())];
        text.insert(at, other.substr(random.below(other.size() + 1), random.below(120)));
        break;
      }
      case 4:
        text.erase(at, random.below(20));
        break;
      case 5: {
        size_t times = random.one_in(20) ? 500 : 1 + random.below(6);
        std::string many;
        for (size_t i = 0; i < times; ++i) many += piece;
        text.insert(at, many);
        break;
      }
      default:
        text = fuzz::mutated_bytes(std::move(text), random);
    }
  }
  return text;
}

void check(bool holds, const char* what) {
  if (!holds) throw std::runtime_error(what);
}

// Returns whether it was rendered.
bool one(const Seeds& seeds, Random& random) {
  std::string source = seeds.templates[random.below(seeds.templates.size())];
  if (!random.one_in(6)) source = mutated_template(std::move(source), seeds, random);
  std::string rows = seeds.rows[random.below(seeds.rows.size())];
  if (random.one_in(2)) rows = fuzz::mutated_json(std::move(rows), random);
  try {
    chat::Value conversations = chat::parse_json(rows);
    chat::ChatTemplate parsed = chat::ChatTemplate::parse(source, "fuzz");
    chat::ChatTemplate::Request request;
    request.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    request.add_generation_prompt = random.one_in(2);
    request.variables = random.one_in(4) ? &conversations : nullptr;
    if (random.one_in(2)) request.date = chat::Date{2024, 7, 26, 12, 30, 5};
    const chat::Value* messages = &conversations;
    if (conversations.is_dict() && !conversations.as_dict().empty()) {
      const auto& members = conversations.as_dict();
      messages = &members[random.below(members.size())].second;
      if (random.one_in(3)) request.tools = &members[0].second;
    }
    request.messages = messages;
    chat::ChatTemplate::Rendered out = parsed.render(request);
    size_t at = 0;
    for (const auto& origin : out.origins) {
      check(at <= origin.begin && origin.begin < origin.end && origin.end <= out.text.size(),
            "origins out of order");
      at = origin.end;
    }
    auto check_parts = [&](const std::vector<std::pair<size_t, size_t>>& parts, const char* what) {
      size_t done = 0;
      for (auto [begin, end] : parts) {
        check(done <= begin && begin < end && end <= out.text.size(), what);
        done = end;
      }
    };
    check_parts(out.generations, "blocks out of order");
    check_parts(out.tools, "bytes of tools out of order");
    const std::vector<std::string> tokens = {"</s>", "<|im_end|>", "<|eot_id|>"};
    for (const chat::Span& span : chat::assistant_spans(parsed, request, out, tokens))
      check(span.begin <= span.end && span.end <= out.text.size(), "a span out of the text");
    return true;
  } catch (const Error& error) {
    if (exit_status(error.code()) != 7) throw;
    return false;
  }
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 5) {
    std::fprintf(stderr, "chat_fuzz COUNT SEED SECONDS FILE...\n");
    return 2;
  }
  uint64_t count = std::strtoull(argv[1], nullptr, 10), seed = std::strtoull(argv[2], nullptr, 10);
  std::chrono::duration<double> limit(std::strtod(argv[3], nullptr));
  Seeds seeds;
  for (int i = 4; i < argc; ++i) collect(argv[i], seeds);
  if (seeds.templates.empty() || seeds.rows.empty())
    throw std::runtime_error("no templates or rows");
  auto started = std::chrono::steady_clock::now();
  uint64_t done = 0, rendered = 0;
  std::chrono::duration<double> slowest{0};
  uint64_t slowest_seed = 0;
  for (; done < count; ++done) {
    auto begun = std::chrono::steady_clock::now();
    if (begun - started > limit) break;
    fuzz::watch(seed + done);
    Random random{seed + done};
    try {
      rendered += one(seeds, random) ? 1 : 0;
    } catch (const std::exception& error) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(seed + done),
                   error.what());
      return 1;
    }
    if (std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
        took > slowest) {
      slowest = took;
      slowest_seed = seed + done;
    }
  }
  std::printf(
      "%llu inputs from seed %llu, %llu rendered, the others refused; the slowest took %.3f s "
      "(seed %llu)\n",
      static_cast<unsigned long long>(done), static_cast<unsigned long long>(seed),
      static_cast<unsigned long long>(rendered), slowest.count(),
      static_cast<unsigned long long>(slowest_seed));
  // Both must occur, or nothing was tested.
  constexpr uint64_t kEnough = 1000;
  return done < kEnough || (rendered > done / 50 && rendered < done) ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "chat_fuzz: %s\n", error.what());
  return 2;
}
