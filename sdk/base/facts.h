// Which of a plugin's build facts must be the engine's. Not public.
#pragma once

#include <string>
#include <string_view>

namespace meshwright {

// What of a fact is compared; empty: nothing. Releases of LibTorch that differ in their last number
// lay out their types alike, and so do its wheels for CPUs and for each CUDA: a plugin that was
// built beside one of them runs beside another.
inline std::string compared(std::string_view key, std::string_view value) {
  if (key.starts_with("info.") || key == "torch.cuda" || key == "torch.c10d") return "";
  size_t kept = value.size();
  if (key == "torch.version") kept = value.find('.', value.find('.') + 1);
  if (key == "torch.abi_version") kept = 4;  // two digits each: major, minor
  return std::string(value.substr(0, kept));
}

}  // namespace meshwright
