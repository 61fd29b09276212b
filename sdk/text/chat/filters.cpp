#include <algorithm>

#include "sdk/text/chat/renderer.h"
#include "sdk/text/chat/unicode.h"

namespace meshwright::chat {

Datum Renderer::apply(Filter filter, std::string_view name, const Datum& value,
                      const Arguments& given) {
  switch (filter) {
    case Filter::unknown:
      fail("No filter named '" + std::string(name) + "'.");
    case Filter::default_: {
      Bound bound = bind(name, given, {"default_value", "boolean"});
      if (!value.is_undefined() && !(flag(bound[1], false) && !truth(value))) return value;
      return bound[0] == nullptr ? Datum::string("") : *bound[0];
    }
    case Filter::tojson:
      return tojson(value, given);
    case Filter::length:
      bind(name, given, {});
      return Datum::whole(length(value));
    case Filter::attr: {
      Bound bound = bind(name, given, {"name"}, 1);
      if (!bound[0]->is_string()) fail("attr() wants a string");
      if (value.is_undefined()) fail_undefined(value);
      // Attributes only, no keys.
      if (value.kind == Kind::dict) {
        Datum found = method(value, bound[0]->view());
        return found.kind == Kind::callable || found.holder != 0
                   ? found
                   : Datum::undefined(bound[0]->view(), static_cast<uint8_t>(Kind::dict));
      }
      return attribute(value, bound[0]->view());
    }
    case Filter::abs:
    case Filter::int_:
    case Filter::float_:
    case Filter::round:
    case Filter::sum:
    case Filter::min:
    case Filter::max:
      return apply_number(filter, name, value, given);
    case Filter::capitalize:
    case Filter::escape:
    case Filter::format:
    case Filter::indent:
    case Filter::lower:
    case Filter::replace:
    case Filter::safe:
    case Filter::string:
    case Filter::title:
    case Filter::trim:
    case Filter::truncate:
    case Filter::upper:
    case Filter::wordcount:
      return apply_text(filter, name, value, given);
    default:
      return apply_list(filter, name, value, given);
  }
}

Datum Renderer::apply_text(Filter filter, std::string_view name, const Datum& value,
                           const Arguments& given) {
  switch (filter) {
    case Filter::trim: {
      Bound bound = bind(name, given, {"chars"});
      return strip(need_text(value), bound[0], true, true);
    }
    case Filter::replace: {
      Bound bound = bind(name, given, {"old", "new", "count"}, 2);
      int64_t count = bound[2] == nullptr || bound[2]->kind == Kind::none
                          ? -1
                          : whole_of(*bound[2], "the count of replace");
      return replace(as_text(value), as_text(*bound[0]), as_text(*bound[1]), count);
    }
    case Filter::indent:
      if (value.is_undefined()) fail_undefined(value);
      if (!value.is_string())
        fail("indent wants a string, not '" + std::string(type_name(value.kind)) + "'");
      return indent(value, given);
    case Filter::format:
      if (given.count > 0 && given.named > 0)
        fail("can't handle positional and keyword arguments at the same time");
      return percent(need_text(value), given);
    case Filter::truncate:
      return truncated(value, given);
    default:
      break;
  }
  bind(name, given, {});
  Datum text = need_text(value);
  switch (filter) {
    case Filter::upper:
      return cased(text, Case::upper);
    case Filter::lower:
      return cased(text, Case::lower);
    case Filter::title:
      return marked(cased(text, Case::title_filter), false);
    case Filter::capitalize:
      return cased(text, Case::capitalize);
    case Filter::escape:
      return escape(value);
    case Filter::safe:
      return marked(as_text(value));
    case Filter::wordcount: {
      int64_t count = 0;
      bool within = false;
      spend(text.size);
      std::string_view bytes = text.view();
      for (size_t at = 0; at < bytes.size();) {
        auto [code, size] = unicode::decode(bytes, at);
        bool is_word = unicode::is_word(code);
        if (is_word && !within) ++count;
        within = is_word;
        at += size;
      }
      return Datum::whole(count);
    }
    default:
      return text;  // string
  }
}

Datum Renderer::truncated(const Datum& value, const Arguments& given) {
  Bound bound = bind("truncate", given, {"length", "killwords", "end", "leeway"});
  if (!value.is_string()) fail("truncate wants a string");
  constexpr int64_t kUsual = 255, kUsualLeeway = 5;
  int64_t limit = bound[0] == nullptr ? kUsual : whole_of(*bound[0], "the length of truncate");
  Datum end = bound[2] == nullptr ? Datum::string("...") : need_text(*bound[2]);
  int64_t leeway = bound[3] == nullptr || bound[3]->kind == Kind::none
                       ? kUsualLeeway
                       : whole_of(*bound[3], "the leeway of truncate");
  auto end_size = static_cast<int64_t>(unicode::length(end.view()));
  if (limit < end_size) fail("the length of truncate is less than that of its end");
  if (leeway < 0) fail("the leeway of truncate is less than 0");
  auto size = static_cast<int64_t>(unicode::length(value.view()));
  if (size - leeway <= limit) return value;
  Datum kept = cut(value, 0, unicode::offset(value.view(), static_cast<size_t>(limit - end_size)));
  if (!flag(bound[1], false))
    if (size_t blank = kept.view().rfind(' '); blank != std::string_view::npos)
      kept = cut(kept, 0, blank);
  return add(kept, end);
}

}  // namespace meshwright::chat
