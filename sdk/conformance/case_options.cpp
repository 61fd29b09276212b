// The option schema, validate() over whatever options hold, and the life of an instance.
#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "sdk/conformance/cases.h"
#include "sdk/conformance/probe.h"

namespace meshwright::conformance {
namespace {

// Whether the options take a value; anything but an Error is a problem of its own.
bool takes(const OptionSchema& schema, const char* name, const OptionValue& value, ErrorCode* code, Report& report) {
  Answer<bool> answer = ask([&] {
    Options options(schema);
    options.set(name, value);
    return true;
  });
  if (!answer.foreign.empty()) report.fail(std::string(name) + ": " + answer.foreign);
  if (answer.error && code != nullptr) *code = answer.error->code();
  if (answer.error && answer.error->helps().empty() && answer.error->code() != ErrorCode::unknown_key)
    report.fail(std::string(name) + " refuses " + to_toml(value) + " without a help line");
  return answer.value.has_value();
}

uint32_t form_bit(const OptionValue& value) {
  constexpr uint32_t bits[] = {0,
                               MESHWRIGHT_BOOL,
                               MESHWRIGHT_INT | MESHWRIGHT_NUMBER,
                               MESHWRIGHT_NUMBER,
                               MESHWRIGHT_STRING,
                               MESHWRIGHT_STRING_LIST,
                               MESHWRIGHT_NUMBER_LIST,
                               MESHWRIGHT_STRING_MAP,
                               MESHWRIGHT_STRING_TABLE};
  return bits[value.index()];
}

// The edges of a range: what lies outside is refused, the bounds themselves are taken.
void check_range(const OptionSchema& schema, const meshwright_option& o, Report& report) {
  bool whole = (o.type & MESHWRIGHT_NUMBER) == 0;
  if ((o.type & (MESHWRIGHT_INT | MESHWRIGHT_NUMBER)) == 0) return;
  auto value = [&](double v) { return whole ? OptionValue(static_cast<int64_t>(v)) : OptionValue(v); };
  ErrorCode code{};
  if ((o.flags & MESHWRIGHT_NO_MIN) == 0) {
    if (takes(schema, o.name, value(o.min - 1), &code, report) || code != ErrorCode::out_of_range)
      report.fail(std::string(o.name) + " takes a value below its minimum");
    bool open = (o.flags & MESHWRIGHT_OPEN_MIN) != 0;
    if (takes(schema, o.name, value(o.min), nullptr, report) == open)
      report.fail(std::string(o.name) + " has its minimum on the wrong side");
  }
  if ((o.flags & MESHWRIGHT_NO_MAX) == 0) {
    if (takes(schema, o.name, value(o.max + 1), &code, report) || code != ErrorCode::out_of_range)
      report.fail(std::string(o.name) + " takes a value above its maximum");
    if (!takes(schema, o.name, value(o.max), nullptr, report)) report.fail(std::string(o.name) + " refuses its own maximum");
  }
}

void check_choices(const OptionSchema& schema, const meshwright_option& o, Report& report) {
  if (o.choices == nullptr || (o.type & MESHWRIGHT_STRING) == 0) return;
  for (const std::string& choice : split_bar(o.choices))
    if (!takes(schema, o.name, OptionValue(choice), nullptr, report))
      report.fail(std::string(o.name) + " refuses its choice \"" + choice + "\"");
  ErrorCode code{};
  if (takes(schema, o.name, OptionValue(std::string("surely not a choice")), &code, report) || code != ErrorCode::bad_choice)
    report.fail(std::string(o.name) + " takes a word that is not among its choices");
}

// Pages of memory of this process.
long resident_pages() {
  std::ifstream in("/proc/self/statm");
  long total = 0, resident = 0;
  in >> total >> resident;
  return resident;
}

}  // namespace

void check_options(const Subject& subject, Report& report) {
  OptionSchema schema = own_schema(*subject.strategy);
  Answer<bool> sound = ask([&] {
    check_schema(schema);
    return true;
  });
  if (!sound.value) return report.fail(sound.error ? one_line(*sound.error) : sound.foreign);
  Options defaults(schema);
  ErrorCode code{};
  if (takes(schema, "no_such_option_anywhere", OptionValue(true), &code, report) || code != ErrorCode::unknown_key)
    report.fail("an unknown key is not refused");
  for (const meshwright_option* o : schema.options) {
    if (report.full()) return;
    for (const OptionValue& value : one_of_each_form()) {
      bool fits = (o->type & form_bit(value)) != 0;
      if (!fits && takes(schema, o->name, value, &code, report) &&
          !(std::holds_alternative<std::string>(value) && (o->flags & MESHWRIGHT_OPTIONAL) != 0))
        report.fail(std::string(o->name) + " takes " + to_toml(value) + ", which is not of its type");
    }
    check_range(schema, *o, report);
    check_choices(schema, *o, report);
    // The default, given by hand, is taken too.
    if (o->default_value != nullptr && defaults.is_set(o->name) && !takes(schema, o->name, defaults.value(o->name), nullptr, report))
      report.fail(std::string(o->name) + " refuses its own default");
  }
  report.note(std::to_string(schema.options.size()) + " options");
}

void check_lifecycle(const Subject& subject, Report& report) {
  constexpr int kTimes = 100;
  long before = 0;
  for (int i = 0; i < kTimes; ++i) {
    Instance instance(subject);
    if (i == kTimes / 5) before = resident_pages();
  }
  // Several at once are as good as one after the other.
  {
    Instance a(subject), b(subject);
    (void)a, (void)b;
  }
  long grown = resident_pages() - before;
  if (grown > 512)
    report.fail("memory grew by " + std::to_string(grown * ::sysconf(_SC_PAGESIZE) / 1024) + " KiB over " + std::to_string(kTimes * 4 / 5) +
                " instances");
  report.note(std::to_string(kTimes) + " times");
}

void check_validate(const Subject& subject, Report& report) {
  Instance strategy(subject);
  Random random(7);
  int refused = 0;
  constexpr int kTries = 300;
  for (int i = 0; i < kTries && !report.full(); ++i) {
    Wish wish = i == 0 ? Wish{} : random_wish(random, 64, 10);
    if (i > 0) randomize_own(*subject.strategy, wish, random);
    Answer<StrategyConfig> config = ask([&] { return make_config(*subject.strategy, wish); });
    if (!config.value) continue;
    Diagnostics diagnostics;
    Answer<bool> answer = ask([&] {
      strategy->validate(*config.value, diagnostics);
      return true;
    });
    if (answer.error) report.fail(describe(wish) + ": validate threw instead of reporting: " + one_line(*answer.error));
    if (!answer.foreign.empty()) report.fail(describe(wish) + ": " + answer.foreign + " left validate");
    if (i == 0 && !diagnostics.ok()) report.fail("the defaults themselves are refused: " + one_line(diagnostics.errors().front()));
    for (const Error& error : diagnostics.errors()) {
      if (error.key().empty()) report.fail("an error of validate names no key: " + one_line(error));
      if (error.helps().empty()) report.fail("an error of validate has no help line: " + one_line(error));
    }
    refused += diagnostics.ok() ? 0 : 1;
  }
  report.note(std::to_string(kTries) + " configurations, " + std::to_string(refused) + " refused");
}

}  // namespace meshwright::conformance
