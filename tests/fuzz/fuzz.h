// What the fuzz programs share: numbers from a seed, mutations of JSON text, and limits on time and
// memory of one input.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

namespace meshwright::fuzz {

struct Random {
  uint64_t state;
  uint64_t next() {  // splitmix64
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return n == 0 ? 0 : static_cast<size_t>(next() % n); }
  bool one_in(size_t n) { return below(n) == 0; }
};

// Takes JSON apart into strings, numbers, words and punctuation, and changes, swaps, repeats,
// removes or nests some of them; now and then single bytes. The result may be JSON or not.
std::string mutated_json(std::string text, Random& random);
// Bytes changed, removed, repeated, cut or added, whatever they mean.
std::string mutated_bytes(std::string bytes, Random& random);

// Memory that operator new hands out, from reset() on.
struct Memory {
  static void reset();
  static size_t largest();  // one allocation
  static size_t peak();     // all that lived at one time, above what lived at reset()
};

// Ends the process with the seed of the input under way when a sanitizer does, or when one input
// takes a minute.
void watch(uint64_t seed);

}  // namespace meshwright::fuzz
