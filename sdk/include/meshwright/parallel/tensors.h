// What computing with the tensors of a model takes: operators, makers of tensors, NoGradGuard.
// Apart from parallel.h, whose tensors have their methods (add_, copy_, ...) only, because
// LibTorch's operators double the time that a source takes to compile and bring a macro CHECK
// along: test frameworks are included after it.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
