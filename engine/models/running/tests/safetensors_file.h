// The tensors of one small safetensors file, for goldens.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <map>
#include <string>

std::map<std::string, at::Tensor> read_safetensors(const std::filesystem::path& path);
