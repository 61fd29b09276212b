// Against the vectors of FIPS 180-4's examples (NIST) and of RFC 4231.
#include "sdk/base/host/sha256.h"

#include <doctest/doctest.h>

namespace sha256_test {

using namespace meshwright::base;

namespace {

constexpr int digit(char c) { return c <= '9' ? c - '0' : c - 'a' + 10; }

constexpr bool is(const Digest& digest, std::string_view hex) {
  if (hex.size() != 2 * digest.size()) return false;
  for (size_t i = 0; i < digest.size(); ++i)
    if (digest[i] != 16 * digit(hex[2 * i]) + digit(hex[2 * i + 1])) return false;
  return true;
}

constexpr Digest hash(std::string_view text) { return Sha256().add(text).finish(); }
constexpr Digest mac(std::string_view key, std::string_view text) {
  return Hmac(key).add(text).finish();
}

constexpr std::string_view kKey20 =
    "\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b\x0b";

static_assert(is(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"));
static_assert(is(mac("Jefe", "what do ya want for nothing?"),
                 "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843"));

}  // namespace

TEST_CASE("SHA-256 and HMAC give what FIPS 180-4 and RFC 4231 publish") {
  CHECK(is(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"));
  CHECK(is(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
           "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"));
  CHECK(is(hash(std::string(1000000, 'a')),
           "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"));
  CHECK(is(mac(kKey20, "Hi There"),
           "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"));
  CHECK(is(mac(std::string(131, '\xaa'), "Test Using Larger Than Block-Size Key - Hash Key First"),
           "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54"));
  // In parts as in one.
  CHECK(Sha256().add("a").add("").add("bc").finish() == hash("abc"));
}

TEST_CASE("secrets are the same when every byte is") {
  CHECK(same_secret("", ""));
  CHECK(same_secret("abc", "abc"));
  CHECK(!same_secret("abc", "abd"));
  CHECK(!same_secret("abc", "ab"));
  CHECK(!same_secret("\xff", "\x7f"));
}

}  // namespace sha256_test
