// Characters whose case mapping is several characters (Unicode SpecialCasing, without conditions):
// code, upper, title.
#include "sdk/text/chat/unicode.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>

namespace meshwright::chat::unicode {

struct SpecialCase {
  char32_t code;
  const char *upper, *title;
};

constexpr SpecialCase kSpecialCases[] = {
    {0xdf, "\x53\x53", "\x53\x73"},
    {0x149, "\xca\xbc\x4e", "\xca\xbc\x4e"},
    {0x1f0, "\x4a\xcc\x8c", "\x4a\xcc\x8c"},
    {0x390, "\xce\x99\xcc\x88\xcc\x81", "\xce\x99\xcc\x88\xcc\x81"},
    {0x3b0, "\xce\xa5\xcc\x88\xcc\x81", "\xce\xa5\xcc\x88\xcc\x81"},
    {0x587, "\xd4\xb5\xd5\x92", "\xd4\xb5\xd6\x82"},
    {0x1e96, "\x48\xcc\xb1", "\x48\xcc\xb1"},
    {0x1e97, "\x54\xcc\x88", "\x54\xcc\x88"},
    {0x1e98, "\x57\xcc\x8a", "\x57\xcc\x8a"},
    {0x1e99, "\x59\xcc\x8a", "\x59\xcc\x8a"},
    {0x1e9a, "\x41\xca\xbe", "\x41\xca\xbe"},
    {0x1f50, "\xce\xa5\xcc\x93", "\xce\xa5\xcc\x93"},
    {0x1f52, "\xce\xa5\xcc\x93\xcc\x80", "\xce\xa5\xcc\x93\xcc\x80"},
    {0x1f54, "\xce\xa5\xcc\x93\xcc\x81", "\xce\xa5\xcc\x93\xcc\x81"},
    {0x1f56, "\xce\xa5\xcc\x93\xcd\x82", "\xce\xa5\xcc\x93\xcd\x82"},
    {0x1f80, "\xe1\xbc\x88\xce\x99", "\xe1\xbe\x88"},
    {0x1f81, "\xe1\xbc\x89\xce\x99", "\xe1\xbe\x89"},
    {0x1f82, "\xe1\xbc\x8a\xce\x99", "\xe1\xbe\x8a"},
    {0x1f83, "\xe1\xbc\x8b\xce\x99", "\xe1\xbe\x8b"},
    {0x1f84, "\xe1\xbc\x8c\xce\x99", "\xe1\xbe\x8c"},
    {0x1f85, "\xe1\xbc\x8d\xce\x99", "\xe1\xbe\x8d"},
    {0x1f86, "\xe1\xbc\x8e\xce\x99", "\xe1\xbe\x8e"},
    {0x1f87, "\xe1\xbc\x8f\xce\x99", "\xe1\xbe\x8f"},
    {0x1f88, "\xe1\xbc\x88\xce\x99", "\xe1\xbe\x88"},
    {0x1f89, "\xe1\xbc\x89\xce\x99", "\xe1\xbe\x89"},
    {0x1f8a, "\xe1\xbc\x8a\xce\x99", "\xe1\xbe\x8a"},
    {0x1f8b, "\xe1\xbc\x8b\xce\x99", "\xe1\xbe\x8b"},
    {0x1f8c, "\xe1\xbc\x8c\xce\x99", "\xe1\xbe\x8c"},
    {0x1f8d, "\xe1\xbc\x8d\xce\x99", "\xe1\xbe\x8d"},
    {0x1f8e, "\xe1\xbc\x8e\xce\x99", "\xe1\xbe\x8e"},
    {0x1f8f, "\xe1\xbc\x8f\xce\x99", "\xe1\xbe\x8f"},
    {0x1f90, "\xe1\xbc\xa8\xce\x99", "\xe1\xbe\x98"},
    {0x1f91, "\xe1\xbc\xa9\xce\x99", "\xe1\xbe\x99"},
    {0x1f92, "\xe1\xbc\xaa\xce\x99", "\xe1\xbe\x9a"},
    {0x1f93, "\xe1\xbc\xab\xce\x99", "\xe1\xbe\x9b"},
    {0x1f94, "\xe1\xbc\xac\xce\x99", "\xe1\xbe\x9c"},
    {0x1f95, "\xe1\xbc\xad\xce\x99", "\xe1\xbe\x9d"},
    {0x1f96, "\xe1\xbc\xae\xce\x99", "\xe1\xbe\x9e"},
    {0x1f97, "\xe1\xbc\xaf\xce\x99", "\xe1\xbe\x9f"},
    {0x1f98, "\xe1\xbc\xa8\xce\x99", "\xe1\xbe\x98"},
    {0x1f99, "\xe1\xbc\xa9\xce\x99", "\xe1\xbe\x99"},
    {0x1f9a, "\xe1\xbc\xaa\xce\x99", "\xe1\xbe\x9a"},
    {0x1f9b, "\xe1\xbc\xab\xce\x99", "\xe1\xbe\x9b"},
    {0x1f9c, "\xe1\xbc\xac\xce\x99", "\xe1\xbe\x9c"},
    {0x1f9d, "\xe1\xbc\xad\xce\x99", "\xe1\xbe\x9d"},
    {0x1f9e, "\xe1\xbc\xae\xce\x99", "\xe1\xbe\x9e"},
    {0x1f9f, "\xe1\xbc\xaf\xce\x99", "\xe1\xbe\x9f"},
    {0x1fa0, "\xe1\xbd\xa8\xce\x99", "\xe1\xbe\xa8"},
    {0x1fa1, "\xe1\xbd\xa9\xce\x99", "\xe1\xbe\xa9"},
    {0x1fa2, "\xe1\xbd\xaa\xce\x99", "\xe1\xbe\xaa"},
    {0x1fa3, "\xe1\xbd\xab\xce\x99", "\xe1\xbe\xab"},
    {0x1fa4, "\xe1\xbd\xac\xce\x99", "\xe1\xbe\xac"},
    {0x1fa5, "\xe1\xbd\xad\xce\x99", "\xe1\xbe\xad"},
    {0x1fa6, "\xe1\xbd\xae\xce\x99", "\xe1\xbe\xae"},
    {0x1fa7, "\xe1\xbd\xaf\xce\x99", "\xe1\xbe\xaf"},
    {0x1fa8, "\xe1\xbd\xa8\xce\x99", "\xe1\xbe\xa8"},
    {0x1fa9, "\xe1\xbd\xa9\xce\x99", "\xe1\xbe\xa9"},
    {0x1faa, "\xe1\xbd\xaa\xce\x99", "\xe1\xbe\xaa"},
    {0x1fab, "\xe1\xbd\xab\xce\x99", "\xe1\xbe\xab"},
    {0x1fac, "\xe1\xbd\xac\xce\x99", "\xe1\xbe\xac"},
    {0x1fad, "\xe1\xbd\xad\xce\x99", "\xe1\xbe\xad"},
    {0x1fae, "\xe1\xbd\xae\xce\x99", "\xe1\xbe\xae"},
    {0x1faf, "\xe1\xbd\xaf\xce\x99", "\xe1\xbe\xaf"},
    {0x1fb2, "\xe1\xbe\xba\xce\x99", "\xe1\xbe\xba\xcd\x85"},
    {0x1fb3, "\xce\x91\xce\x99", "\xe1\xbe\xbc"},
    {0x1fb4, "\xce\x86\xce\x99", "\xce\x86\xcd\x85"},
    {0x1fb6, "\xce\x91\xcd\x82", "\xce\x91\xcd\x82"},
    {0x1fb7, "\xce\x91\xcd\x82\xce\x99", "\xce\x91\xcd\x82\xcd\x85"},
    {0x1fbc, "\xce\x91\xce\x99", "\xe1\xbe\xbc"},
    {0x1fc2, "\xe1\xbf\x8a\xce\x99", "\xe1\xbf\x8a\xcd\x85"},
    {0x1fc3, "\xce\x97\xce\x99", "\xe1\xbf\x8c"},
    {0x1fc4, "\xce\x89\xce\x99", "\xce\x89\xcd\x85"},
    {0x1fc6, "\xce\x97\xcd\x82", "\xce\x97\xcd\x82"},
    {0x1fc7, "\xce\x97\xcd\x82\xce\x99", "\xce\x97\xcd\x82\xcd\x85"},
    {0x1fcc, "\xce\x97\xce\x99", "\xe1\xbf\x8c"},
    {0x1fd2, "\xce\x99\xcc\x88\xcc\x80", "\xce\x99\xcc\x88\xcc\x80"},
    {0x1fd3, "\xce\x99\xcc\x88\xcc\x81", "\xce\x99\xcc\x88\xcc\x81"},
    {0x1fd6, "\xce\x99\xcd\x82", "\xce\x99\xcd\x82"},
    {0x1fd7, "\xce\x99\xcc\x88\xcd\x82", "\xce\x99\xcc\x88\xcd\x82"},
    {0x1fe2, "\xce\xa5\xcc\x88\xcc\x80", "\xce\xa5\xcc\x88\xcc\x80"},
    {0x1fe3, "\xce\xa5\xcc\x88\xcc\x81", "\xce\xa5\xcc\x88\xcc\x81"},
    {0x1fe4, "\xce\xa1\xcc\x93", "\xce\xa1\xcc\x93"},
    {0x1fe6, "\xce\xa5\xcd\x82", "\xce\xa5\xcd\x82"},
    {0x1fe7, "\xce\xa5\xcc\x88\xcd\x82", "\xce\xa5\xcc\x88\xcd\x82"},
    {0x1ff2, "\xe1\xbf\xba\xce\x99", "\xe1\xbf\xba\xcd\x85"},
    {0x1ff3, "\xce\xa9\xce\x99", "\xe1\xbf\xbc"},
    {0x1ff4, "\xce\x8f\xce\x99", "\xce\x8f\xcd\x85"},
    {0x1ff6, "\xce\xa9\xcd\x82", "\xce\xa9\xcd\x82"},
    {0x1ff7, "\xce\xa9\xcd\x82\xce\x99", "\xce\xa9\xcd\x82\xcd\x85"},
    {0x1ffc, "\xce\xa9\xce\x99", "\xe1\xbf\xbc"},
    {0xfb00, "\x46\x46", "\x46\x66"},
    {0xfb01, "\x46\x49", "\x46\x69"},
    {0xfb02, "\x46\x4c", "\x46\x6c"},
    {0xfb03, "\x46\x46\x49", "\x46\x66\x69"},
    {0xfb04, "\x46\x46\x4c", "\x46\x66\x6c"},
    {0xfb05, "\x53\x54", "\x53\x74"},
    {0xfb06, "\x53\x54", "\x53\x74"},
    {0xfb13, "\xd5\x84\xd5\x86", "\xd5\x84\xd5\xb6"},
    {0xfb14, "\xd5\x84\xd4\xb5", "\xd5\x84\xd5\xa5"},
    {0xfb15, "\xd5\x84\xd4\xbb", "\xd5\x84\xd5\xab"},
    {0xfb16, "\xd5\x8e\xd5\x86", "\xd5\x8e\xd5\xb6"},
    {0xfb17, "\xd5\x84\xd4\xbd", "\xd5\x84\xd5\xad"},
};

// Characters that have a property of Python's str which does not follow from their category, from
// Python's own tables (Unicode 14.0.0). tests/make_unicode.py holds all of it against Python.

struct CharRange {
  char32_t first, last;
};

// No Ll, and small.
constexpr CharRange kOtherLowercase[] = {
    {0xaa, 0xaa},       {0xba, 0xba},       {0x2b0, 0x2b8},     {0x2c0, 0x2c1},    {0x2e0, 0x2e4},
    {0x345, 0x345},     {0x37a, 0x37a},     {0x1d2c, 0x1d6a},   {0x1d78, 0x1d78},  {0x1d9b, 0x1dbf},
    {0x2071, 0x2071},   {0x207f, 0x207f},   {0x2090, 0x209c},   {0x2170, 0x217f},  {0x24d0, 0x24e9},
    {0x2c7c, 0x2c7d},   {0xa69c, 0xa69d},   {0xa770, 0xa770},   {0xa7f8, 0xa7f9},  {0xab5c, 0xab5f},
    {0x10780, 0x10780}, {0x10783, 0x10785}, {0x10787, 0x107b0}, {0x107b2, 0x107ba}};

// No Lu, and big.
constexpr CharRange kOtherUppercase[] = {
    {0x2160, 0x216f}, {0x24b6, 0x24cf}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};

// No Nd, and digits.
constexpr CharRange kOtherDigits[] = {
    {0xb2, 0xb3},       {0xb9, 0xb9},       {0x1369, 0x1371},   {0x19da, 0x19da},
    {0x2070, 0x2070},   {0x2074, 0x2079},   {0x2080, 0x2089},   {0x2460, 0x2468},
    {0x2474, 0x247c},   {0x2488, 0x2490},   {0x24ea, 0x24ea},   {0x24f5, 0x24fd},
    {0x24ff, 0x24ff},   {0x2776, 0x277e},   {0x2780, 0x2788},   {0x278a, 0x2792},
    {0x10a40, 0x10a43}, {0x10e60, 0x10e68}, {0x11052, 0x1105a}, {0x1f100, 0x1f10a}};

// Letters that are numbers.
constexpr CharRange kNumerals[] = {
    {0x3405, 0x3405},   {0x3483, 0x3483},   {0x382a, 0x382a},   {0x3b4d, 0x3b4d},
    {0x4e00, 0x4e00},   {0x4e03, 0x4e03},   {0x4e07, 0x4e07},   {0x4e09, 0x4e09},
    {0x4e5d, 0x4e5d},   {0x4e8c, 0x4e8c},   {0x4e94, 0x4e94},   {0x4e96, 0x4e96},
    {0x4ebf, 0x4ec0},   {0x4edf, 0x4edf},   {0x4ee8, 0x4ee8},   {0x4f0d, 0x4f0d},
    {0x4f70, 0x4f70},   {0x5104, 0x5104},   {0x5146, 0x5146},   {0x5169, 0x5169},
    {0x516b, 0x516b},   {0x516d, 0x516d},   {0x5341, 0x5341},   {0x5343, 0x5345},
    {0x534c, 0x534c},   {0x53c1, 0x53c4},   {0x56db, 0x56db},   {0x58f1, 0x58f1},
    {0x58f9, 0x58f9},   {0x5e7a, 0x5e7a},   {0x5efe, 0x5eff},   {0x5f0c, 0x5f0e},
    {0x5f10, 0x5f10},   {0x62fe, 0x62fe},   {0x634c, 0x634c},   {0x67d2, 0x67d2},
    {0x6f06, 0x6f06},   {0x7396, 0x7396},   {0x767e, 0x767e},   {0x8086, 0x8086},
    {0x842c, 0x842c},   {0x8cae, 0x8cae},   {0x8cb3, 0x8cb3},   {0x8d30, 0x8d30},
    {0x9621, 0x9621},   {0x9646, 0x9646},   {0x964c, 0x964c},   {0x9678, 0x9678},
    {0x96f6, 0x96f6},   {0xf96b, 0xf96b},   {0xf973, 0xf973},   {0xf978, 0xf978},
    {0xf9b2, 0xf9b2},   {0xf9d1, 0xf9d1},   {0xf9d3, 0xf9d3},   {0xf9fd, 0xf9fd},
    {0x20001, 0x20001}, {0x20064, 0x20064}, {0x200e2, 0x200e2}, {0x20121, 0x20121},
    {0x2092a, 0x2092a}, {0x20983, 0x20983}, {0x2098c, 0x2098c}, {0x2099c, 0x2099c},
    {0x20aea, 0x20aea}, {0x20afd, 0x20afd}, {0x20b19, 0x20b19}, {0x22390, 0x22390},
    {0x22998, 0x22998}, {0x23b1b, 0x23b1b}, {0x2626d, 0x2626d}, {0x2f890, 0x2f890}};

// Of identifiers, beside letters, Nl and the underscore.
constexpr CharRange kOtherStarts[] = {{0x1885, 0x1886}, {0x2118, 0x2118}, {0x212e, 0x212e}};

// Letters that begin none.
constexpr CharRange kNoStarts[] = {
    {0x37a, 0x37a},   {0xe33, 0xe33},   {0xeb3, 0xeb3},   {0x2e2f, 0x2e2f}, {0xfc5e, 0xfc63},
    {0xfdfa, 0xfdfb}, {0xfe70, 0xfe70}, {0xfe72, 0xfe72}, {0xfe74, 0xfe74}, {0xfe76, 0xfe76},
    {0xfe78, 0xfe78}, {0xfe7a, 0xfe7a}, {0xfe7c, 0xfe7c}, {0xfe7e, 0xfe7e}, {0xff9e, 0xff9f}};

// Of identifiers, beside what begins them, Mn, Mc, Nd and Pc.
constexpr CharRange kOtherContinues[] = {{0xb7, 0xb7},     {0x387, 0x387},   {0x1369, 0x1371},
                                         {0x19da, 0x19da}, {0x2118, 0x2118}, {0x212e, 0x212e}};

// Such that are in none.
constexpr CharRange kNoContinues[] = {{0x37a, 0x37a},   {0x2e2f, 0x2e2f}, {0xfc5e, 0xfc63},
                                      {0xfdfa, 0xfdfb}, {0xfe70, 0xfe70}, {0xfe72, 0xfe72},
                                      {0xfe74, 0xfe74}, {0xfe76, 0xfe76}, {0xfe78, 0xfe78},
                                      {0xfe7a, 0xfe7a}, {0xfe7c, 0xfe7c}, {0xfe7e, 0xfe7e}};

// Between the letters of a word, beside Mn, Me, Cf, Lm and Sk.
constexpr CharRange kOtherIgnorable[] = {
    {0x27, 0x27},     {0x2e, 0x2e},     {0x3a, 0x3a},     {0xb7, 0xb7},
    {0x387, 0x387},   {0x55f, 0x55f},   {0x5f4, 0x5f4},   {0x2018, 0x2019},
    {0x2024, 0x2024}, {0x2027, 0x2027}, {0xfe13, 0xfe13}, {0xfe52, 0xfe52},
    {0xfe55, 0xfe55}, {0xff07, 0xff07}, {0xff0e, 0xff0e}, {0xff1a, 0xff1a}};

namespace {

utf8proc_category_t category(char32_t code) {
  return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

// Categories as bits.
template <class... T>
constexpr uint32_t bits(T... categories) {
  return ((uint32_t{1} << categories) | ...);
}
bool is_of(char32_t code, uint32_t categories) { return (categories >> category(code) & 1) != 0; }

constexpr uint32_t kLetters = bits(UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LT,
                                   UTF8PROC_CATEGORY_LM, UTF8PROC_CATEGORY_LO);
constexpr uint32_t kNumbers =
    bits(UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_NL, UTF8PROC_CATEGORY_NO);
constexpr uint32_t kUnprinted =
    bits(UTF8PROC_CATEGORY_CN, UTF8PROC_CATEGORY_CC, UTF8PROC_CATEGORY_CF, UTF8PROC_CATEGORY_CS,
         UTF8PROC_CATEGORY_CO, UTF8PROC_CATEGORY_ZS, UTF8PROC_CATEGORY_ZL, UTF8PROC_CATEGORY_ZP);
constexpr uint32_t kIgnorable =
    bits(UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_ME, UTF8PROC_CATEGORY_CF, UTF8PROC_CATEGORY_LM,
         UTF8PROC_CATEGORY_SK);
constexpr uint32_t kContinues =
    kLetters | bits(UTF8PROC_CATEGORY_NL, UTF8PROC_CATEGORY_MN, UTF8PROC_CATEGORY_MC,
                    UTF8PROC_CATEGORY_ND, UTF8PROC_CATEGORY_PC);

const SpecialCase* special(char32_t code) {
  const SpecialCase* found =
      std::lower_bound(std::begin(kSpecialCases), std::end(kSpecialCases), code,
                       [](const SpecialCase& one, char32_t wanted) { return one.code < wanted; });
  return found != std::end(kSpecialCases) && found->code == code ? found : nullptr;
}

template <size_t N>
bool in(const CharRange (&ranges)[N], char32_t code) {
  const CharRange* found =
      std::lower_bound(std::begin(ranges), std::end(ranges), code,
                       [](const CharRange& one, char32_t wanted) { return one.last < wanted; });
  return found != std::end(ranges) && found->first <= code;
}

}  // namespace

size_t length(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

size_t offset(std::string_view text, size_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) at += decode(text, at).size;
  return std::min(at, text.size());
}

bool ascii(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

bool is_blank(char32_t code) {
  if (code < 0x80)
    return code == ' ' || (code >= 9 && code <= 13) || (code >= 0x1c && code <= 0x1f);
  return code == 0x85 || code == 0xa0 || code == 0x1680 || (code >= 0x2000 && code <= 0x200a) ||
         code == 0x2028 || code == 0x2029 || code == 0x202f || code == 0x205f || code == 0x3000;
}

bool is_line_end(char32_t code) {
  return (code >= 10 && code <= 13) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

bool is_printable(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = decode(text, at);
    if (!is_printable(code)) return false;
    at += size;
  }
  return true;
}
bool is_printable(char32_t code) {
  if (code < 0x7f) return code >= ' ';
  return !is_of(code, kUnprinted);
}

bool is_upper(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LU || in(kOtherUppercase, code);
}
bool is_lower(char32_t code) {
  return category(code) == UTF8PROC_CATEGORY_LL || in(kOtherLowercase, code);
}
bool is_title(char32_t code) { return category(code) == UTF8PROC_CATEGORY_LT; }
bool is_cased(char32_t code) { return is_upper(code) || is_lower(code) || is_title(code); }
bool is_case_ignorable(char32_t code) {
  return is_of(code, kIgnorable) || in(kOtherIgnorable, code);
}
bool is_alpha(char32_t code) { return is_of(code, kLetters); }
bool is_decimal(char32_t code) { return category(code) == UTF8PROC_CATEGORY_ND; }
int decimal_of(char32_t code) {
  if (!is_decimal(code)) return -1;
  // Digits stand in rows from 0 to 9.
  char32_t first = code;
  while (is_decimal(first - 1)) --first;
  return static_cast<int>((code - first) % 10);
}
bool is_digit(char32_t code) { return is_decimal(code) || in(kOtherDigits, code); }
bool is_numeric(char32_t code) { return is_of(code, kNumbers) || in(kNumerals, code); }
bool is_word(char32_t code) { return code == '_' || is_alpha(code) || is_numeric(code); }

bool is_name_start(char32_t code) {
  if (code < 0x80) return code == '_' || is_alpha(code);
  return in(kOtherStarts, code) ||
         ((is_alpha(code) || category(code) == UTF8PROC_CATEGORY_NL) && !in(kNoStarts, code));
}
bool is_name_part(char32_t code) {
  return is_of(code, kContinues) ? !in(kNoContinues, code) : in(kOtherContinues, code);
}
bool is_identifier(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    auto [code, size] = decode(text, at);
    if (at == 0 ? !is_name_start(code) : !is_name_part(code)) return false;
    at += size;
  }
  return !text.empty();
}

void upper(char32_t code, std::string& out) {
  if (const SpecialCase* found = code >= 0x80 ? special(code) : nullptr)
    out += found->upper;
  else
    encode(static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code))), out);
}

void lower(char32_t code, std::string& out) {
  if (code == 0x130)
    out += "i\xcc\x87";
  else
    encode(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))), out);
}

void title(char32_t code, std::string& out) {
  if (const SpecialCase* found = code >= 0x80 ? special(code) : nullptr)
    out += found->title;
  else
    encode(static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(code))), out);
}

void fold(char32_t code, std::string& out) {
  utf8proc_int32_t codes[4];  // a folding has at most 3
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), codes, 4,
                                             UTF8PROC_CASEFOLD, nullptr);
  if (count < 1 || count > 4) return encode(code, out);
  for (utf8proc_ssize_t i = 0; i < count; ++i) encode(static_cast<char32_t>(codes[i]), out);
}

std::pair<size_t, size_t> stripped(std::string_view text, bool left, bool right) {
  size_t begin = 0, end = text.size();
  while (left && begin < end) {
    auto [code, size] = decode(text, begin);
    if (!is_blank(code)) break;
    begin += size;
  }
  while (right && end > begin) {
    size_t last = end - 1;
    while (last > begin && (static_cast<unsigned char>(text[last]) & 0xc0) == 0x80) --last;
    if (!is_blank(decode(text, last).code)) break;
    end = last;
  }
  return {begin, end};
}

}  // namespace meshwright::chat::unicode
