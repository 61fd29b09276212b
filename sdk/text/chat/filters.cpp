#include <algorithm>
#include <unordered_set>

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
    case Filter::int_:
      return to_int(value, given);
    case Filter::float_:
      return to_float(value, given);
    case Filter::round:
      return rounded(value, given);
    case Filter::min:
      return extreme(value, given, false);
    case Filter::max:
      return extreme(value, given, true);
    case Filter::sum:
      return summed(value, given);
    case Filter::trim: {
      Bound bound = bind(name, given, {"chars"});
      return strip(need_text(value), bound[0], true, true);
    }
    case Filter::replace: {
      Bound bound = bind(name, given, {"old", "new", "count"}, 2);
      int64_t count = !is_given(bound[2]) ? -1 : whole_of(*bound[2], "the count of replace");
      return replace(as_text(value), as_text(*bound[0]), as_text(*bound[1]), count);
    }
    case Filter::indent:
      if (value.is_undefined()) fail_undefined(value);
      if (!value.is_string()) fail("indent wants a string, not '" + type_name(value.kind) + "'");
      return indent(value, given);
    case Filter::format:
      if (given.count > 0 && given.named > 0)
        fail("can't handle positional and keyword arguments at the same time");
      return percent(need_text(value), given);
    case Filter::truncate:
      return truncated(value, given);
    case Filter::select:
      return selected(value, given, false, true);
    case Filter::reject:
      return selected(value, given, false, false);
    case Filter::selectattr:
      return selected(value, given, true, true);
    case Filter::rejectattr:
      return selected(value, given, true, false);
    case Filter::map:
      return mapped(value, given);
    case Filter::dictsort:
      return dictsorted(value, given);
    case Filter::unique:
      return unique(value, given);
    case Filter::batch:
      return batched(value, given);
    case Filter::slice:
      return sliced_columns(value, given);
    case Filter::groupby:
      return grouped(value, given);
    case Filter::sort: {
      Bound bound = bind(name, given, {"reverse", "case_sensitive", "attribute"});
      const Items items = need_items(value);
      return sorted(items, flag(bound[0], false),
                    sort_keys(items, bound[2], flag(bound[1], false), true));
    }
    case Filter::join: {
      Bound bound = bind(name, given, {"d", "attribute"});
      Items items = need_items(value);
      Datum separator = bound[0] == nullptr ? Datum::string("") : as_text(*bound[0]);
      if (is_given(bound[1])) {
        Datum* parts = take<Datum>(items.size);
        for (uint32_t i = 0; i < items.size; ++i) parts[i] = path(items.at[i], *bound[1]);
        items.at = parts;
      }
      return joined(separator, items, false);
    }
    default:
      break;
  }
  bind(name, given, {});
  return apply_plain(filter, value);
}

// Those that take no argument.
Datum Renderer::apply_plain(Filter filter, const Datum& value) {
  switch (filter) {
    case Filter::abs:
      return absolute(value);
    case Filter::length:
      return Datum::whole(length(value));
    case Filter::string:
      return need_text(value);
    case Filter::upper:
      return cased(need_text(value), Case::upper);
    case Filter::lower:
      return cased(need_text(value), Case::lower);
    case Filter::title:
      return marked(cased(need_text(value), Case::title_filter), false);
    case Filter::capitalize:
      return cased(need_text(value), Case::capitalize);
    case Filter::escape:
      return escape(value);
    case Filter::safe:
      return marked(as_text(value));
    case Filter::wordcount: {
      int64_t count = 0;
      bool within = false;
      const Datum text = need_text(value);
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
    case Filter::list: {
      Items items = need_items(value);
      Datum out = Datum::sequence(Kind::list, items.at, items.size);
      out.message = value.message;
      return out;
    }
    case Filter::items: {
      if (value.is_undefined()) return list_of({}, Kind::iterator);
      if (value.kind != Kind::dict) fail("Can only get item pairs from a mapping.");
      const Datum items = dict_method(value, Method::items, {});
      return stream_of(items.items, items.size);
    }
    case Filter::first:
    case Filter::last: {
      // Python goes through a Markup forwards as a string and backwards as what it is.
      if (value.is_string() && value.size > 0)
        return filter == Filter::first ? item(marked(value, false), Datum::whole(0))
                                       : item(value, Datum::whole(-1));
      if (filter == Filter::last && value.kind == Kind::iterator)
        fail("'generator' object is not reversible");
      if (value.kind == Kind::iterator) {
        Stream& rest = *value.stream;
        if (rest.at < rest.size) return rest.items[rest.at++];
      }
      Items items = need_items(value);
      if (items.size == 0) return Datum::undefined("the sequence was empty: no such item");
      return items.at[filter == Filter::first ? 0 : items.size - 1];
    }
    default:
      break;  // reverse
  }
  if (value.is_string()) return sliced(value, Datum::none(), Datum::none(), Datum::whole(-1));
  Items items = need_items(value);
  Datum* out = take<Datum>(items.size);
  std::reverse_copy(items.begin(), items.end(), out);
  return stream_of(out, items.size);
}

Datum Renderer::truncated(const Datum& value, const Arguments& given) {
  Bound bound = bind("truncate", given, {"length", "killwords", "end", "leeway"});
  if (!value.is_string()) fail("truncate wants a string");
  constexpr int64_t kUsual = 255, kUsualLeeway = 5;
  int64_t limit = bound[0] == nullptr ? kUsual : whole_of(*bound[0], "the length of truncate");
  Datum end = bound[2] == nullptr ? Datum::string("...") : need_text(*bound[2]);
  int64_t leeway =
      !is_given(bound[3]) ? kUsualLeeway : whole_of(*bound[3], "the leeway of truncate");
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

Datum Renderer::selected(const Datum& value, const Arguments& given, bool by_attribute, bool keep) {
  if (!truth(value)) return list_of({}, Kind::iterator);
  Items items = need_items(value);
  Arguments rest = given;
  const Datum* by = nullptr;
  if (by_attribute) {
    if (rest.count == 0) fail("Missing parameter for attribute name");
    by = rest.list++;
    --rest.count;
  }
  Test chosen = Test::unknown;
  std::string named;
  bool has_test = rest.count > 0;
  if (has_test) {
    named = plain(rest.list[0]);
    chosen = test_named(named);
    ++rest.list;
    --rest.count;
  }
  std::vector<Datum> out;
  for (const Datum& item : items) {
    spend(1);
    Datum tested_item = by != nullptr ? path(item, *by) : item;
    bool passes = has_test ? test(chosen, named, tested_item, rest) : truth(tested_item);
    if (passes == keep) out.push_back(item);
  }
  return list_of(out, Kind::iterator);
}

Datum Renderer::mapped(const Datum& value, const Arguments& given) {
  if (!truth(value)) return list_of({}, Kind::iterator);
  Items items = need_items(value);
  Datum* out = take<Datum>(items.size);
  spend(items.size);
  if (given.count == 0 && given.named > 0 && given.keywords[0].name != "attribute" &&
      !(given.named > 1 && given.keywords[1].name == "attribute"))
    fail("map requires a filter argument");
  if (given.count == 0) {
    Bound bound = bind("map", given, {"attribute", "default"}, 1);
    for (uint32_t i = 0; i < items.size; ++i) {
      out[i] = path(items.at[i], *bound[0], bound[1]);
    }
  } else {
    std::string name = plain(given.list[0]);
    Filter filter = filter_named(name);
    Arguments rest = given;
    ++rest.list;
    --rest.count;
    const auto level = called();  // map may be mapped
    for (uint32_t i = 0; i < items.size; ++i) out[i] = apply(filter, name, items.at[i], rest);
  }
  return stream_of(out, items.size);
}

Datum Renderer::sort_key(const Datum& value, const Datum* attribute, bool case_sensitive,
                         bool several, const Datum* otherwise) {
  auto fold = [&](const Datum& key) {
    return key.is_string() && !case_sensitive ? cased(key, Case::lower) : key;
  };
  if (!is_given(attribute))
    return fold(value.is_undefined() && otherwise != nullptr ? *otherwise : value);
  if (!several || !attribute->is_string() || attribute->view().find(',') == std::string_view::npos)
    return fold(path(value, *attribute, otherwise));
  std::vector<Datum> keys;
  std::string_view rest = attribute->view();
  for (size_t comma = 0; comma != std::string_view::npos;) {
    comma = rest.find(',');
    keys.push_back(fold(path(value, Datum::string(rest.substr(0, comma)))));
    if (comma != std::string_view::npos) rest = rest.substr(comma + 1);
  }
  return list_of(keys);
}

std::vector<Datum> Renderer::sort_keys(Items items, const Datum* attribute, bool case_sensitive,
                                       bool several, const Datum* otherwise) {
  std::vector<Datum> out;
  out.reserve(items.size);
  for (const Datum& item : items)
    out.push_back(sort_key(item, attribute, case_sensitive, several, otherwise));
  return out;
}

Datum Renderer::sorted(Items items, bool reverse, const std::vector<Datum>& keys) {
  std::vector<std::pair<Datum, Datum>> keyed;
  for (uint32_t i = 0; i < items.size; ++i) keyed.emplace_back(keys[i], items.at[i]);
  // Also what is not compared with anything must have an order with its neighbour.
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    spend(1);
    return reverse ? order(b.first, a.first, "<") == -1 : order(a.first, b.first, "<") == -1;
  });
  Datum* out = take<Datum>(keyed.size());
  for (size_t i = 0; i < keyed.size(); ++i) out[i] = keyed[i].second;
  return Datum::sequence(Kind::list, out, keyed.size());
}

Datum Renderer::dictsorted(const Datum& value, const Arguments& given) {
  Bound bound = bind("dictsort", given, {"case_sensitive", "by", "reverse"});
  if (value.is_undefined()) fail_undefined(value);
  if (value.kind != Kind::dict) fail("dictsort wants a mapping");
  std::string by = bound[1] == nullptr ? "key" : plain(*bound[1]);
  if (by != "key" && by != "value") fail("You can only sort by either \"key\" or \"value\"");
  Datum index = Datum::whole(by == "key" ? 0 : 1);
  const Items items = items_of(dict_method(value, Method::items, {}));
  return sorted(items, flag(bound[2], false), sort_keys(items, &index, flag(bound[0], false)));
}

Datum Renderer::unique(const Datum& value, const Arguments& given) {
  Bound bound = bind("unique", given, {"case_sensitive", "attribute"});
  const Items items = need_items(value);
  const std::vector<Datum> keys = sort_keys(items, bound[1], flag(bound[0], false));
  auto hash_of = [&](const Datum* key) { return hash(*key); };
  auto same = [&](const Datum* a, const Datum* b) { return equal(*a, *b); };
  std::unordered_set<const Datum*, decltype(hash_of), decltype(same)> seen(items.size, hash_of,
                                                                           same);
  std::vector<Datum> out;
  for (uint32_t i = 0; i < items.size; ++i) {
    spend(1);
    if (seen.insert(&keys[i]).second) out.push_back(items.at[i]);
  }
  return list_of(out, Kind::iterator);
}

size_t Renderer::size_of(const Datum& value, const std::string& what) const {
  constexpr int64_t kMost = 100000;
  const int64_t size = whole_of(value, what);
  if (size < 1 || size > kMost) fail(what + " must be from 1 to 100000");
  return static_cast<size_t>(size);
}

Datum Renderer::batched(const Datum& value, const Arguments& given) {
  Bound bound = bind("batch", given, {"linecount", "fill_with"}, 1);
  const size_t count = size_of(*bound[0], "the size of a batch");
  std::vector<Datum> batches, batch;
  auto close = [&] {
    batches.push_back(list_of(batch));
    batch.clear();
  };
  for (const Datum& item : need_items(value)) {
    if (batch.size() == count) close();
    batch.push_back(item);
  }
  if (!batch.empty()) {
    if (is_given(bound[1])) batch.resize(count, *bound[1]);
    close();
  }
  return list_of(batches, Kind::iterator);
}

Datum Renderer::sliced_columns(const Datum& value, const Arguments& given) {
  Bound bound = bind("slice", given, {"slices", "fill_with"}, 1);
  const size_t slices = size_of(*bound[0], "the number of slices");
  Items items = need_items(value);
  size_t each = items.size / slices, longer = items.size % slices, at = 0;
  bool fills = is_given(bound[1]);
  std::vector<Datum> out;
  for (size_t i = 0; i < slices; ++i) {
    size_t size = each + (i < longer ? 1 : 0);
    std::vector<Datum> column(items.at + at, items.at + at + size);
    at += size;
    if (fills && i >= longer) column.push_back(*bound[1]);
    out.push_back(list_of(column));
  }
  return list_of(out, Kind::iterator);
}

Datum Renderer::grouped(const Datum& value, const Arguments& given) {
  Bound bound = bind("groupby", given, {"attribute", "default", "case_sensitive"}, 1);
  const bool exact = flag(bound[2], false);
  const Items items = need_items(value);
  // Items and their keys in order, by their numbers.
  const std::vector<Datum> keys = sort_keys(items, bound[0], exact, false, bound[1]);
  std::vector<Datum> numbers;
  for (uint32_t i = 0; i < items.size; ++i) numbers.push_back(Datum::whole(i));
  const Datum ordered = sorted({numbers.data(), items.size}, false, keys);
  std::vector<Datum> groups, group;
  const Datum* key = nullptr;
  auto close = [&] {
    if (group.empty()) return;
    groups.push_back(marked(
        pair(exact ? *key : sort_key(group[0], bound[0], true, false, bound[1]), list_of(group))));
    group.clear();
  };
  for (const Datum& number : Items{ordered.items, ordered.size}) {
    const auto i = static_cast<size_t>(number.integer);
    if (key == nullptr || !equal(*key, keys[i])) {
      close();
      key = &keys[i];
    }
    group.push_back(items.at[i]);
  }
  close();
  return list_of(groups);
}

bool Renderer::test(Test test, std::string_view name, const Datum& value, const Arguments& given) {
  auto argument = [&]() -> const Datum& {
    if (given.count != 1 || given.named != 0)
      fail("the test '" + std::string(name) + "' takes one argument");
    return given.list[0];
  };
  if (test <= Test::in) return related(static_cast<ast::Relation>(test), value, argument());
  switch (test) {
    case Test::unknown:
      fail("No test named '" + std::string(name) + "'.");
    case Test::sameas:
      return identical(value, argument());
    case Test::divisibleby:
      return equal(arithmetic(ast::Op::modulo, value, argument()), Datum::whole(0));
    default:
      break;
  }
  if (given.count + given.named != 0)
    fail("the test '" + std::string(name) + "' takes no argument");
  auto remainder = [&] {
    if (value.is_string()) fail("not all arguments converted during string formatting");
    return arithmetic(ast::Op::modulo, value, Datum::whole(2));
  };
  switch (test) {
    case Test::defined:
      return !value.is_undefined();
    case Test::undefined:
      return value.is_undefined();
    case Test::none:
      return value.kind == Kind::none;
    case Test::boolean:
      return value.kind == Kind::boolean;
    case Test::true_:
      return value.kind == Kind::boolean && value.truth;
    case Test::false_:
      return value.kind == Kind::boolean && !value.truth;
    case Test::string:
      return value.is_string();
    case Test::mapping:
      return value.kind == Kind::dict;
    case Test::number:
      return is_number(value);
    case Test::integer:
      return value.kind == Kind::integer || value.kind == Kind::big;
    case Test::float_:
      return value.kind == Kind::real;
    case Test::sequence:
      return value.is_string() || value.is_indexed() || value.kind == Kind::dict ||
             value.is_undefined();
    case Test::iterable:
      return value.is_string() || value.is_sequence() || value.kind == Kind::dict ||
             value.is_undefined() || value.kind == Kind::loop;
    case Test::odd:
      return equal(remainder(), Datum::whole(1));
    case Test::even:
      return equal(remainder(), Datum::whole(0));
    case Test::lower:
      return all_chars(as_text(value), Method::islower);
    case Test::upper:
      return all_chars(as_text(value), Method::isupper);
    case Test::callable:
      return value.kind == Kind::callable || value.kind == Kind::loop;
    case Test::filter:
      return filter_named(plain(value)) != Filter::unknown;
    case Test::test:
      return test_named(plain(value)) != Test::unknown;
    default:
      return value.is_markup();  // escaped
  }
}

}  // namespace meshwright::chat
