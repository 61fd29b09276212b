#include <algorithm>

#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

Datum Renderer::call_method(const Datum& self, Method method, std::string_view name,
                            const Arguments& given) {
  if (self.is_string()) return string_method(self, method, name, given);
  return self.kind == Kind::dict ? dict_method(self, method, given)
                                 : list_method(self, method, given);
}

Datum Renderer::starts(const Datum& self, const Arguments& given, bool at_end) {
  Bound bound = bind(at_end ? "endswith" : "startswith", given, {"affix"}, 1);
  auto fits = [&](const Datum& affix) {
    if (affix.is_undefined()) fail_undefined(affix);
    if (!affix.is_string())
      fail(std::string(at_end ? "endswith" : "startswith") +
           " first arg must be str or a tuple of str, not " + std::string(type_name(affix.kind)));
    spend(affix.size / 8);
    return at_end ? self.view().ends_with(affix.view()) : self.view().starts_with(affix.view());
  };
  if (bound[0]->kind != Kind::tuple) return Datum::boolean(fits(*bound[0]));
  return Datum::boolean(std::any_of(bound[0]->items, bound[0]->items + bound[0]->size, fits));
}

Datum Renderer::find_text(const Datum& self, Method method, const Arguments& given) {
  Bound bound = bind("find", given, {"sub"}, 1);
  if (!bound[0]->is_string()) fail("must be str, not " + std::string(type_name(bound[0]->kind)));
  std::string_view text = self.view(), wanted = bound[0]->view();
  spend(text.size());
  if (method == Method::count) {
    if (wanted.empty()) return Datum::whole(static_cast<int64_t>(unicode::length(text)) + 1);
    int64_t count = 0;
    for (size_t at = text.find(wanted); at != std::string_view::npos;
         at = text.find(wanted, at + wanted.size()))
      ++count;
    return Datum::whole(count);
  }
  const bool last = method == Method::rfind || method == Method::rindex;
  size_t at = last ? text.rfind(wanted) : text.find(wanted);
  if (at == std::string_view::npos) {
    if (method == Method::index || method == Method::rindex) fail("substring not found");
    return Datum::whole(-1);
  }
  return Datum::whole(static_cast<int64_t>(unicode::length(text.substr(0, at))));
}

bool Renderer::all_chars(const Datum& self, Method method) {
  std::string_view text = self.view();
  spend(text.size());
  bool cased = false;
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = unicode::decode(text, at);
    at += size;
    switch (method) {
      case Method::isdigit:
        if (!unicode::is_digit(code)) return false;
        break;
      case Method::isdecimal:
        if (!unicode::is_decimal(code)) return false;
        break;
      case Method::isnumeric:
        if (!unicode::is_numeric(code)) return false;
        break;
      case Method::isalpha:
        if (!unicode::is_alpha(code)) return false;
        break;
      case Method::isalnum:
        if (code == '_' || !unicode::is_word(code)) return false;
        break;
      case Method::isspace:
        if (!unicode::is_blank(code)) return false;
        break;
      default: {
        bool wanted = method == Method::isupper ? unicode::is_upper(code) : unicode::is_lower(code);
        bool other = method == Method::isupper ? unicode::is_lower(code) : unicode::is_upper(code);
        if (other || unicode::is_title(code)) return false;
        cased = cased || wanted;
      }
    }
  }
  return method == Method::isupper || method == Method::islower ? cased : !text.empty();
}

// str.istitle: big letters begin words, and small ones do not.
bool Renderer::is_title(const Datum& self) {
  std::string_view text = self.view();
  spend(text.size());
  bool within = false, cased = false;
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = unicode::decode(text, at);
    at += size;
    const bool big = unicode::is_upper(code) || unicode::is_title(code);
    if (big ? within : unicode::is_lower(code) && !within) return false;
    within = big || unicode::is_lower(code);
    cased = cased || within;
  }
  return cased;
}

Datum Renderer::string_method(const Datum& self, Method method, std::string_view name,
                              const Arguments& given) {
  std::string called(name);
  switch (method) {
    case Method::strip:
    case Method::lstrip:
    case Method::rstrip: {
      Bound bound = bind(called, given, {"chars"});
      return strip(self, bound[0], method != Method::rstrip, method != Method::lstrip);
    }
    case Method::split:
      return split(self, given, false);
    case Method::rsplit:
      return split(self, given, true);
    case Method::splitlines: {
      Bound bound = bind(called, given, {"keepends"});
      return split_lines(self, flag(bound[0], false));
    }
    case Method::startswith:
      return starts(self, given, false);
    case Method::endswith:
      return starts(self, given, true);
    case Method::replace: {
      Bound bound = bind(called, given, {"old", "new", "count"}, 2);
      for (size_t i = 0; i < 2; ++i) {
        if (bound[i]->is_undefined()) fail_undefined(*bound[i]);
        if (!bound[i]->is_string())
          fail("replace() argument " + std::to_string(i + 1) + " must be str, not " +
               std::string(type_name(bound[i]->kind)));
      }
      return replace(self, *bound[0], *bound[1],
                     bound[2] == nullptr ? -1 : whole_of(*bound[2], "the count of replace()"));
    }
    case Method::removeprefix:
    case Method::removesuffix: {
      Bound bound = bind(called, given, {"affix"}, 1);
      if (!bound[0]->is_string()) fail(called + "() argument must be str");
      std::string_view affix = bound[0]->view();
      if (method == Method::removeprefix)
        return self.view().starts_with(affix) ? cut(self, affix.size(), self.size) : self;
      return self.view().ends_with(affix) ? cut(self, 0, self.size - affix.size()) : self;
    }
    case Method::join: {
      Bound bound = bind(called, given, {"iterable"}, 1);
      return joined(self, need_items(*bound[0]), true);
    }
    case Method::find:
    case Method::rfind:
    case Method::index:
    case Method::rindex:
    case Method::count:
      return find_text(self, method, given);
    case Method::center:
    case Method::ljust:
    case Method::rjust:
      return padded(self, method, given);
    case Method::partition:
      return partition(self, given, false);
    case Method::rpartition:
      return partition(self, given, true);
    case Method::expandtabs:
      return expand_tabs(self, given);
    case Method::format:
      return format(self, given);
    case Method::upper:
    case Method::lower:
    case Method::title:
    case Method::capitalize:
    case Method::casefold:
    case Method::swapcase:
      bind(called, given, {});
      return cased(self, method == Method::upper      ? Case::upper
                         : method == Method::lower    ? Case::lower
                         : method == Method::title    ? Case::title
                         : method == Method::casefold ? Case::fold
                         : method == Method::swapcase ? Case::swap
                                                      : Case::capitalize);
    case Method::isascii:
      bind(called, given, {});
      return Datum::boolean(unicode::ascii(self.view()));
    case Method::isidentifier:
      bind(called, given, {});
      return Datum::boolean(unicode::is_identifier(self.view()));
    case Method::isprintable:
      bind(called, given, {});
      return Datum::boolean(unicode::is_printable(self.view()));
    case Method::istitle:
      bind(called, given, {});
      return Datum::boolean(is_title(self));
    case Method::isdigit:
    case Method::isdecimal:
    case Method::isnumeric:
    case Method::isalpha:
    case Method::isalnum:
    case Method::isspace:
    case Method::isupper:
    case Method::islower:
      bind(called, given, {});
      return Datum::boolean(all_chars(self, method));
    case Method::zfill: {
      Bound bound = bind(called, given, {"width"}, 1);
      int64_t lacking = whole_of(*bound[0], "the width of zfill()") -
                        static_cast<int64_t>(unicode::length(self.view()));
      bool sign = self.view().starts_with('-') || self.view().starts_with('+');
      Datum zeros = repeated(marked(Datum::string("0"), self.marked), lacking);
      if (!sign) return add(zeros, self);
      return add(add(cut(self, 0, 1), zeros), cut(self, 1, self.size));
    }
    default:
      fail("the method '" + called + "' of str is not supported");
  }
}

Datum Renderer::pair(const Datum& first, const Datum& second) {
  Datum* items = take<Datum>(2);
  items[0] = first;
  items[1] = second;
  return Datum::sequence(Kind::tuple, items, 2);
}

Datum Renderer::dict_method(const Datum& self, Method method, const Arguments& given) {
  switch (method) {
    case Method::get: {
      Bound bound = bind("get", given, {"key", "default"}, 1);
      if (const Datum* found = find(self, *bound[0])) return *found;
      return bound[1] == nullptr ? Datum::none() : *bound[1];
    }
    case Method::keys:
    case Method::values:
    case Method::items: {
      bind("items", given, {});
      spend(self.size);
      Datum* items = take<Datum>(self.size);
      for (uint32_t i = 0; i < self.size; ++i) {
        const Datum* entry = &self.items[2 * size_t{i}];
        items[i] = method == Method::keys     ? entry[0]
                   : method == Method::values ? entry[1]
                                              : pair(entry[0], entry[1]);
      }
      Datum out = Datum::sequence(Kind::view, items, self.size);
      out.holder = static_cast<uint8_t>(method == Method::keys     ? View::keys
                                        : method == Method::values ? View::values
                                                                   : View::items);
      return out;
    }
    default:
      bind("copy", given, {});
      return self;
  }
}

Datum Renderer::list_method(const Datum& self, Method method, const Arguments& given) {
  if (method == Method::copy) {
    bind("copy", given, {});
    return self;
  }
  Bound bound = bind(method == Method::index ? "index" : "count", given, {"value"}, 1);
  spend(self.size);
  int64_t count = 0;
  for (uint32_t i = 0; i < self.size; ++i) {
    if (!equal(self.items[i], *bound[0])) continue;
    if (method == Method::index) return Datum::whole(i);
    ++count;
  }
  if (method == Method::index) fail("the value is not in the list");
  return Datum::whole(count);
}

}  // namespace meshwright::chat
