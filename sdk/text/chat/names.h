// The filters, tests and methods there are, by number, so that a template is looked up once.
#pragma once

#include <cstdint>
#include <string_view>

namespace meshwright::chat {

enum class Filter : uint8_t {
  unknown,
  abs,
  attr,
  batch,
  capitalize,
  default_,
  dictsort,
  escape,
  first,
  float_,
  format,
  groupby,
  indent,
  int_,
  items,
  join,
  last,
  length,
  list,
  lower,
  map,
  max,
  min,
  reject,
  rejectattr,
  replace,
  reverse,
  round,
  safe,
  select,
  selectattr,
  slice,
  sort,
  string,
  sum,
  title,
  tojson,
  trim,
  truncate,
  unique,
  upper,
  wordcount
};

enum class Test : uint8_t {
  unknown,
  boolean,
  callable,
  defined,
  divisibleby,
  eq,
  even,
  false_,
  filter,
  float_,
  ge,
  gt,
  in,
  integer,
  iterable,
  le,
  lower,
  lt,
  mapping,
  ne,
  none,
  number,
  odd,
  sameas,
  sequence,
  string,
  test,
  true_,
  undefined,
  upper,
  escaped
};

enum class Method : uint8_t {
  unknown,
  // of strings
  capitalize,
  casefold,
  center,
  count,
  endswith,
  expandtabs,
  find,
  format,
  index,
  isalnum,
  isalpha,
  isascii,
  isdecimal,
  isdigit,
  isidentifier,
  islower,
  isnumeric,
  isprintable,
  isspace,
  istitle,
  isupper,
  join,
  ljust,
  lower,
  lstrip,
  partition,
  removeprefix,
  removesuffix,
  replace,
  rfind,
  rindex,
  rjust,
  rpartition,
  rsplit,
  rstrip,
  split,
  splitlines,
  startswith,
  strip,
  swapcase,
  title,
  upper,
  zfill,
  other_string,  // Python has it, we do not
  other_markup,  // likewise, of a Markup only
  // of dicts
  copy,
  get,
  items,
  keys,
  values,
  // refused by the sandbox
  mutating
};

Filter filter_named(std::string_view name);
Test test_named(std::string_view name);

// The method of that name, if values of that kind have one; unknown: they have not.
enum class Owner : uint8_t { string, dict, list, tuple };
Method method_named(Owner owner, std::string_view name);

}  // namespace meshwright::chat
