#include <algorithm>
#include <ctime>

#include "sdk/base/plain_text.h"
#include "sdk/text/chat/renderer.h"

namespace meshwright::chat {

using ast::Expr;
using ast::Macro;
using ast::Op;

Datum Renderer::callable(const Callable& of) {
  Datum out = Datum::of(Kind::callable);
  out.callable = make(of);
  return out;
}

Datum Renderer::call(const Expr& expr, Frame& frame) {
  // A method is called on its value without making one to call.
  Datum self, callee;
  Method found = Method::unknown;
  if (expr.a->op == Op::attribute) {
    self = evaluate(*expr.a->a, frame);
    line_ = expr.a->line;
    if (const std::optional<Owner> owner = owner_of(self))
      found = method_named(*owner, expr.a->text);
    if (found == Method::mutating) found = Method::unknown;
    if (found == Method::unknown) callee = attribute(self, expr.a->text);
  } else {
    callee = evaluate(*expr.a, frame);
  }
  Arguments given = arguments(expr, frame);
  line_ = expr.line;
  return found != Method::unknown ? call_method(self, found, expr.a->text, given)
                                  : call(callee, given);
}

Datum Renderer::call(const Datum& callee, const Arguments& given) {
  if (callee.is_undefined()) fail_undefined(callee);
  if (callee.kind == Kind::loop) return call_loop(*callee.loop, given);
  if (callee.kind != Kind::callable)
    fail("'" + type_name(callee.kind) + "' object is not callable");
  const Callable& of = *callee.callable;
  switch (of.type) {
    case Callable::Type::function:
      return call_function(of.function, given);
    case Callable::Type::method:
      return call_method(of.self, of.method, of.name, given);
    case Callable::Type::macro:
      return call_macro(*of.macro, of.frame, given, nullptr);
    case Callable::Type::loop_cycle:
      if (given.count == 0) fail("no items for cycling given");
      return given.list[of.self.loop->index0 % given.count];
    case Callable::Type::loop_changed: {
      Loop& loop = *of.self.loop;
      Datum now = Datum::sequence(Kind::tuple, given.list, given.count);
      bool same = loop.changed != nullptr &&
                  equal(Datum::sequence(Kind::tuple, loop.changed, loop.changed_size), now);
      // The arguments live as long as the rendering.
      static constexpr Datum kNothing{};
      loop.changed = given.count == 0 ? &kNothing : keep(now).items;
      loop.changed_size = now.size;
      return Datum::boolean(!same);
    }
    case Callable::Type::joiner: {
      bool first = *of.at == 0;
      *of.at = 1;
      return first ? Datum::string("") : of.self;
    }
    case Callable::Type::cycler_next: {
      Datum out = of.items[*of.at];
      *of.at = (*of.at + 1) % of.size;
      return out;
    }
    case Callable::Type::cycler_reset:
      *of.at = 0;
      return Datum::none();
    case Callable::Type::cycler:
      break;
  }
  fail("'Cycler' object is not callable");
}

Datum Renderer::call_loop(Loop& loop, const Arguments& given) {
  if (!loop.stmt->recursive)
    fail("The loop must have the 'recursive' marker to be called recursively.");
  if (given.count != 1 || given.named != 0) fail("loop() takes one argument");
  const auto level = called();
  Writer inner;
  const Aside aside(*this, inner);
  this->loop(*loop.stmt, given.list[0], *loop.outer, loop.depth0 + 1);
  return text_of(inner);
}

Datum Renderer::call_macro(const Macro& macro, Frame* defined, const Arguments& given,
                           const Datum* caller) {
  const auto level = called();
  Frame* frame = open(*macro.scope, defined);
  const auto& parameters = macro.parameters;
  auto refuse = [&](const std::string& what) { fail("macro '" + macro.name + "' " + what); };
  size_t taken = std::min(given.count, parameters.size());
  for (size_t i = 0; i < taken; ++i) frame->slots[parameters[i].second] = given.list[i];
  std::vector<Arguments::Keyword> others;
  for (size_t i = 0; i < given.named; ++i) {
    const Arguments::Keyword& keyword = given.keywords[i];
    auto known = std::find_if(parameters.begin(), parameters.end(),
                              [&](const auto& one) { return one.first == keyword.name; });
    if (known == parameters.end()) {
      if (keyword.name == "caller" && macro.caller != Macro::kNone)
        frame->slots[macro.caller] = keyword.value;
      else
        others.push_back(keyword);
      continue;
    }
    if (static_cast<size_t>(known - parameters.begin()) < taken)
      refuse("got multiple values for argument '" + known->first + "'");
    frame->slots[known->second] = keyword.value;
  }
  if (given.count > parameters.size() && macro.varargs == Macro::kNone)
    refuse("takes not more than " + std::to_string(parameters.size()) + " argument(s)");
  if (!others.empty() && macro.kwargs == Macro::kNone)
    refuse("takes no keyword argument '" + std::string(others[0].name) + "'");
  if (macro.varargs != Macro::kNone)
    frame->slots[macro.varargs] =
        Datum::sequence(Kind::tuple, given.list + taken, given.count - taken);
  if (macro.kwargs != Macro::kNone) {
    Datum* entries = take<Datum>(2 * others.size());
    for (size_t i = 0; i < others.size(); ++i) {
      entries[2 * i] = Datum::string(others[i].name);
      entries[2 * i + 1] = others[i].value;
    }
    frame->slots[macro.kwargs] = Datum::sequence(Kind::dict, entries, others.size());
  }
  if (caller != nullptr) {
    auto named = std::find_if(parameters.begin(), parameters.end(),
                              [](const auto& one) { return one.first == "caller"; });
    if (macro.caller == Macro::kNone && named == parameters.end()) refuse("takes no caller");
    frame->slots[named == parameters.end() ? macro.caller : named->second] = *caller;
  }
  if (macro.caller != Macro::kNone && frame->slots[macro.caller].kind == Kind::missing)
    frame->slots[macro.caller] = Datum::undefined("caller");
  // A default may ask for the parameters before it.
  size_t first_default = parameters.size() - macro.defaults.size();
  for (size_t i = 0; i < parameters.size(); ++i) {
    Datum& slot = frame->slots[parameters[i].second];
    if (slot.kind != Kind::missing) continue;
    slot = i < first_default ? Datum::undefined(parameters[i].first)
                             : evaluate(*macro.defaults[i - first_default], *frame);
  }
  return captured(macro.body, *frame);
}

Datum Renderer::call_block(const ast::Stmt& stmt, Frame& frame) {
  Callable body{.type = Callable::Type::macro, .name = "caller"};
  body.macro = stmt.macro;
  body.frame = &frame;
  Datum caller = callable(body);
  const Expr& expr = *stmt.expr;
  Datum callee = evaluate(*expr.a, frame);
  Arguments given = arguments(expr, frame);
  line_ = expr.line;
  if (callee.kind == Kind::callable && callee.callable->type == Callable::Type::macro)
    return call_macro(*callee.callable->macro, callee.callable->frame, given, &caller);
  // Others get it as the keyword that it is.
  auto* keywords = take<Arguments::Keyword>(given.named + 1);
  std::copy_n(given.keywords, given.named, keywords);
  keywords[given.named] = {"caller", caller};
  given.keywords = keywords;
  ++given.named;
  return call(callee, given);
}

Renderer::Bound Renderer::bind(std::string_view callee, const Arguments& given,
                               std::initializer_list<std::string_view> names, size_t needed) const {
  Bound out{};
  if (given.count > names.size())
    fail(std::string(callee) + "() takes at most " + std::to_string(names.size()) +
         " arguments, got " + std::to_string(given.count));
  for (size_t i = 0; i < given.count; ++i) out[i] = &given.list[i];
  for (size_t i = 0; i < given.named; ++i) {
    const Arguments::Keyword& keyword = given.keywords[i];
    const auto* found = std::find(names.begin(), names.end(), keyword.name);
    if (found == names.end())
      fail(std::string(callee) + "() got an unexpected keyword argument '" +
           std::string(keyword.name) + "'");
    const Datum*& place = out[static_cast<size_t>(found - names.begin())];
    if (place != nullptr)
      fail(std::string(callee) + "() got multiple values for argument '" +
           std::string(keyword.name) + "'");
    place = &keyword.value;
  }
  for (size_t i = 0; i < needed; ++i)
    if (out[i] == nullptr)
      fail(std::string(callee) + "() lacks the argument '" + std::string(names.begin()[i]) + "'");
  return out;
}

Datum Renderer::call_function(Function function, const Arguments& given) {
  switch (function) {
    case Function::space:
    case Function::dict: {
      if (given.count > 1) fail("expected at most 1 argument");
      Datum from = given.count == 1 ? given.list[0] : Datum::none();
      if (given.count == 1 && from.kind != Kind::dict) {
        if (from.is_undefined()) fail_undefined(from);
        fail("dict() and namespace() take a mapping or keywords");
      }
      size_t copied_entries = given.count == 1 ? from.size : 0;
      Datum* entries = take<Datum>(2 * (copied_entries + given.named));
      if (copied_entries > 0) std::copy_n(from.items, 2 * copied_entries, entries);
      Datum out = Datum::sequence(Kind::dict, entries, copied_entries);
      for (size_t i = 0; i < given.named; ++i) {
        const Datum* known = find(out, given.keywords[i].name);
        Datum* place = known != nullptr ? entries + (known - entries) : &entries[2 * out.size + 1];
        if (known == nullptr) entries[2 * out.size++] = Datum::string(given.keywords[i].name);
        *place = given.keywords[i].value;
      }
      if (function == Function::dict) return out;
      for (uint32_t i = 0; i < out.size; ++i)
        if (!entries[2 * i].is_string()) entries[2 * i] = as_text(entries[2 * i]);
      Datum space = Datum::of(Kind::space);
      space.space = make(Space{entries, out.size, out.size});
      return space;
    }
    case Function::range:
      return range(given);
    case Function::joiner: {
      Bound bound = bind("joiner", given, {"sep"});
      Callable of{.type = Callable::Type::joiner};
      of.self = bound[0] == nullptr ? Datum::string(", ") : *bound[0];
      of.at = make(uint32_t{0});
      return callable(of);
    }
    case Function::cycler: {
      if (given.named != 0) fail("cycler() takes no keyword arguments");
      if (given.count == 0) fail("at least one item has to be provided");
      Callable of{.type = Callable::Type::cycler};
      of.items = given.list;
      of.size = static_cast<uint32_t>(given.count);
      of.at = make(uint32_t{0});
      return callable(of);
    }
    case Function::raise_exception: {
      Bound bound = bind("raise_exception", given, {"message"}, 1);
      fail(plain(*bound[0]));
    }
    case Function::strftime_now:
      return strftime_now(given);
  }
  return {};
}

Datum Renderer::range(const Arguments& given) {
  if (given.named != 0) fail("range() takes no keyword arguments");
  if (given.count == 0 || given.count > 3) fail("range() takes 1 to 3 arguments");
  std::array<int64_t, 3> values{0, 0, 1};
  for (size_t i = 0; i < given.count; ++i)
    values[i] = whole_of(given.list[i], "an argument of range()");
  if (given.count == 1) values = {0, values[0], 1};
  auto [begin, end, step] = values;
  if (step == 0) fail("range() arg 3 must not be zero");
  constexpr uint64_t kMost = 100000;  // as Jinja's sandbox
  // Without a sign, as the distance may be more than an int64_t holds.
  auto distance = [](int64_t from, int64_t to) {
    return from >= to ? uint64_t{0} : static_cast<uint64_t>(to) - static_cast<uint64_t>(from);
  };
  uint64_t way = step > 0 ? distance(begin, end) : distance(end, begin);
  uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  uint64_t size = way == 0 ? 0 : (way - 1) / stride + 1;
  if (size > kMost) fail("Range too big. The sandbox blocks ranges larger than 100000.");
  return range_of(begin, end, step, size);
}

Datum Renderer::range_of(int64_t begin, int64_t end, int64_t step, size_t size) {
  Datum* items = take<Datum>(size + 3);
  for (int64_t part : {begin, end, step}) *items++ = Datum::whole(part);
  for (size_t i = 0; i < size; ++i) items[i] = Datum::whole(begin + static_cast<int64_t>(i) * step);
  return Datum::sequence(Kind::range, items, size);
}

Datum Renderer::strftime_now(const Arguments& given) {
  Bound bound = bind("strftime_now", given, {"format"}, 1);
  Datum format = need_text(*bound[0]);
  const Date& date = *request_.date;
  std::tm when{};
  when.tm_year = date.year - 1900;
  when.tm_mon = date.month - 1;
  when.tm_mday = date.day;
  when.tm_hour = date.hour;
  when.tm_min = date.minute;
  when.tm_sec = date.second;
  std::tm full = when;
  full.tm_isdst = 0;
  timegm(&full);  // fills in the days of the week and of the year
  std::string out;
  std::string_view text = format.view();
  constexpr std::string_view kKnown = "aAbBcdDeFHIjmMnpSTuwxXyY%";
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    char c = text[++i];
    if (c == '-' && i + 1 < text.size() && kKnown.find(text[i + 1]) != std::string_view::npos) {
      const std::array<char, 4> spec{'%', '-', text[++i], '\0'};
      out += text::format_time(spec.data(), full);
    } else if (kKnown.find(c) != std::string_view::npos) {
      const std::array<char, 3> spec{'%', c, '\0'};
      out += text::format_time(spec.data(), full);
    } else {
      fail(std::string("strftime_now() does not know '%") + c + "'");
    }
  }
  return copied(out);
}

}  // namespace meshwright::chat
