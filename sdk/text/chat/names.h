// The filters, tests and methods there are, by number, so that a template is looked up once. Each
// has its name in Jinja; an underscore at the end keeps it apart from a word of C++.
#pragma once

#include <boost/describe/enum.hpp>
#include <cstdint>
#include <string_view>

namespace meshwright::chat {

BOOST_DEFINE_FIXED_ENUM_CLASS(Filter, uint8_t, unknown, abs, attr, batch, capitalize, default_,
                              dictsort, escape, first, float_, format, groupby, indent, int_, items,
                              join, last, length, list, lower, map, max, min, reject, rejectattr,
                              replace, reverse, round, safe, select, selectattr, slice, sort,
                              string, sum, title, tojson, trim, truncate, unique, upper, wordcount)

// The first ones compare as ast::Relation does, in its order.
BOOST_DEFINE_FIXED_ENUM_CLASS(Test, uint8_t, eq, ne, lt, le, gt, ge, in, unknown, boolean, callable,
                              defined, divisibleby, escaped, even, false_, filter, float_, integer,
                              iterable, lower, mapping, none, number, odd, sameas, sequence, string,
                              test, true_, undefined, upper)

// Of strings first, up to zfill. other_string: Python has it, we do not; other_markup: likewise, of
// a Markup only; mutating: refused by the sandbox.
BOOST_DEFINE_FIXED_ENUM_CLASS(Method, uint8_t, unknown, capitalize, casefold, center, count,
                              endswith, expandtabs, find, format, index, isalnum, isalpha, isascii,
                              isdecimal, isdigit, isidentifier, islower, isnumeric, isprintable,
                              isspace, istitle, isupper, join, ljust, lower, lstrip, partition,
                              removeprefix, removesuffix, replace, rfind, rindex, rjust, rpartition,
                              rsplit, rstrip, split, splitlines, startswith, strip, swapcase, title,
                              upper, zfill, other_string, other_markup, copy, get, items, keys,
                              values, mutating)

Filter filter_named(std::string_view name);
Test test_named(std::string_view name);

// The method of that name, if values of that kind have one; unknown: they have not.
enum class Owner : uint8_t { string, dict, list, tuple };
Method method_named(Owner owner, std::string_view name);

}  // namespace meshwright::chat
